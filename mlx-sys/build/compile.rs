//! Compiling mlx-c, once for everything that goes into it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::fetch::MLXC_VERSION;
use crate::plan::{Mlx, Plan, MLX_VERSION};

/// The folder that holds `libmlxc.a`.
pub fn mlxc(plan: &Plan, sources: &Path, mlx: &Path, native: &Path) -> Result<PathBuf, String> {
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").pic(true).opt_level(2).debug(false).warnings(false).cargo_metadata(false);
    build.flag("-include").flag(native.join("compat.h").to_str().ok_or("a path is not UTF-8")?);
    build.include(sources).include(mlx.join("include"));
    let compiler = build.try_get_compiler().map_err(no_compiler)?;

    let mut files = cpp_files(&sources.join("mlx/c"))?;
    files.push(native.join("portable.cpp"));
    let folder = plan
        .cache
        .join(format!("mlxc-{MLXC_VERSION}-{:016x}", key(plan, &target, &compiler, &files, native)?));
    if folder.join("libmlxc.a").exists() {
        return Ok(folder);
    }
    println!(
        "cargo::warning=compiling mlx-c {MLXC_VERSION} once, into {} (about a minute)",
        folder.display()
    );
    let staging = plan.cache.join(format!("mlxc-{}", std::process::id()));
    let outcome = build.files(&files).out_dir(&staging).try_compile("mlxc");
    let outcome = outcome.map_err(|err| format!("compiling mlx-c against MLX {MLX_VERSION} failed: {err}"));
    let moved = outcome.and_then(|()| match fs::rename(&staging, &folder) {
        // Another build was faster.
        Err(_) if folder.join("libmlxc.a").exists() => Ok(()),
        other => other.map_err(|err| format!("cannot move libmlxc.a to {}: {err}", folder.display())),
    });
    fs::remove_dir_all(&staging).ok();
    moved.map(|()| folder)
}

fn no_compiler(err: cc::Error) -> String {
    format!(
        "no C++ compiler ({err}); install one (Debian: apt-get install g++; macOS: xcode-select --install), or \
         name one in CXX"
    )
}

fn cpp_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "cpp"));
    files.sort();
    Ok(files)
}

/// Changes with anything that the library depends on.
fn key(
    plan: &Plan,
    target: &str,
    compiler: &cc::Tool,
    files: &[PathBuf],
    native: &Path,
) -> Result<u64, String> {
    let mut hash = DefaultHasher::new();
    (target, MLX_VERSION, MLXC_VERSION).hash(&mut hash);
    // Includes are named by place; what the pinned ones hold is settled by the versions.
    if let Mlx::Given(dir) = &plan.mlx {
        dir.hash(&mut hash);
    }
    plan.mlxc.hash(&mut hash);
    let flags = compiler.args().iter().filter(|arg| !arg.to_string_lossy().contains('/'));
    flags.for_each(|flag| flag.hash(&mut hash));
    if let Ok(output) = Command::new(compiler.path()).arg("--version").output() {
        output.stdout.hash(&mut hash);
    }
    for file in files.iter().chain(&[native.join("compat.h")]) {
        fs::read(file).map_err(|err| format!("{}: {err}", file.display()))?.hash(&mut hash);
    }
    Ok(hash.finish())
}

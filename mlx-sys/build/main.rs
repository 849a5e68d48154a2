//! Finds or fetches MLX and mlx-c, compiles the latter, and says what to link. See `plan.rs` for the decisions.

mod bindings;
mod compile;
mod fetch;
mod plan;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use plan::{Machine, MLX_VERSION};

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}

const VARIABLES: [&str; 6] =
    ["FORERUN_BACKEND", "FORERUN_CACHE_DIR", "FORERUN_MLX_DIR", "FORERUN_MLXC_DIR", "XDG_CACHE_HOME", "HOME"];

fn build() -> Result<(), String> {
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let (vendor, native) = (package.join("../vendor"), package.join("native"));
    for folder in ["native", "build", "../vendor"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let compiler = ["CXX", "CXXFLAGS"].into_iter();
    for name in VARIABLES.into_iter().chain(compiler) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let plan = plan::plan(&machine())?;
    fs::create_dir_all(&plan.cache).map_err(|err| format!("cannot make {}: {err}", plan.cache.display()))?;
    let mlx = fetch::mlx(&plan, &vendor)?;
    let sources = fetch::mlxc(&plan, &vendor)?;
    let library = compile::mlxc(&plan, &sources, &mlx, &native)?;
    bindings::regenerate(&sources, &package)?;

    let lib = mlx.join("lib");
    println!("cargo::rustc-link-search=native={}", library.display());
    println!("cargo::rustc-link-lib=static=mlxc");
    println!("cargo::rustc-link-search=native={}", lib.display());
    for library in &plan.libraries {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    watch(&lib);
    watch(&library);

    let include = env::join_paths([mlx.join("include"), sources]);
    let include = include.map_err(|err| format!("a path holds the list separator: {err}"))?;
    println!("cargo::metadata=include={}", Path::new(&include).display());
    println!("cargo::metadata=defines=");
    println!("cargo::metadata=version={MLX_VERSION}");
    println!("cargo::metadata=lib={}", lib.display());
    println!("cargo::metadata=backend={}", plan.backend.name());
    Ok(())
}

/// A cache that was cleared must be filled again. Cargo would take a folder that this very run filled for one that
/// has changed since, so it watches a file in it that looks old.
fn watch(folder: &Path) {
    let stamp = folder.join("forerun.stamp");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
    let made = fs::File::create(&stamp).and_then(|file| file.set_modified(old));
    // A folder that was given may be read-only; it is older than this run.
    let watched = if made.is_ok() { &stamp } else { folder };
    println!("cargo::rerun-if-changed={}", watched.display());
}

fn machine() -> Machine {
    let version = || {
        let output = Command::new("sw_vers").arg("-productVersion").output().ok()?;
        plan::parse_version(&String::from_utf8_lossy(&output.stdout))
    };
    let env = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?))).collect();
    Machine { target: env::var("TARGET").expect("cargo sets TARGET"), macos: version(), env }
}

//! Getting the sources of mlx-c and an unpacked MLX.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::plan::{Mlx, Plan, MLX_VERSION};

pub const MLXC_VERSION: &str = "0.7.0";

/// MLX's folder with `include/` and `lib/`, fetched if it isn't there, complete either way.
pub fn mlx(plan: &Plan, vendor: &Path) -> Result<PathBuf, String> {
    let dir = plan.mlx_dir();
    let missing = || plan.must_have.iter().find(|file| !dir.join(file).exists());
    match &plan.mlx {
        Mlx::Given(_) => match missing() {
            Some(file) => Err(format!(
                "FORERUN_MLX_DIR={} has no {file}; it should be the folder `mlx` of an unpacked MLX {MLX_VERSION}",
                dir.display()
            )),
            None => Ok(dir),
        },
        Mlx::Wheels { requirements, platforms, folder } => {
            if missing().is_some() {
                let complete = || missing().is_none();
                download(plan, &vendor.join(requirements), platforms, folder, complete)?;
            }
            match missing() {
                Some(file) => Err(format!(
                    "{} has no {file} although it was just unpacked; remove the folder and build again",
                    dir.display()
                )),
                None => Ok(dir),
            }
        }
    }
}

/// Downloads and unpacks beside the final place, then renames, so that a folder there is complete.
fn download(
    plan: &Plan,
    requirements: &Path,
    platforms: &[String],
    folder: &Path,
    complete: impl Fn() -> bool,
) -> Result<(), String> {
    println!(
        "cargo::warning=fetching MLX {MLX_VERSION} ({}) once, into {}",
        plan.backend.name(),
        folder.display()
    );
    let staging = plan.cache.join(format!("fetch-{}", std::process::id()));
    let wheels = staging.join("wheels");
    fs::create_dir_all(&wheels).map_err(|err| format!("cannot make {}: {err}", wheels.display()))?;
    let outcome = (|| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--require-hashes", "--only-binary=:all:", "--requirement"]).arg(requirements);
        for platform in platforms {
            pip.arg("--platform").arg(platform);
        }
        run(pip.arg("--dest").arg(&wheels))?;
        let unpacked = staging.join("unpacked");
        for wheel in files(&wheels)? {
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
        }
        // An incomplete folder from elsewhere must not be in the way.
        if !complete() {
            fs::remove_dir_all(folder).ok();
        }
        match fs::rename(&unpacked, folder) {
            // Another build was faster: its folder is the same.
            Err(_) if complete() => Ok(()),
            other => other.map_err(|err| format!("cannot move MLX to {}: {err}", folder.display())),
        }
    })();
    fs::remove_dir_all(&staging).ok();
    outcome
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|err| {
        format!("cannot run python3 ({err}), which fetches MLX; install it (Debian: apt-get install python3 python3-pip)")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("fetching MLX {MLX_VERSION} failed: {}\n{}", mend(&stderr), stderr.trim()))
}

fn mend(stderr: &str) -> &'static str {
    let lower = stderr.to_lowercase();
    if lower.contains("no module named pip") {
        "python3 has no pip; install it (Debian: apt-get install python3-pip)"
    } else if lower.contains("do not match the hashes") {
        "a package is not the one that was pinned in vendor/; do not use it"
    } else if lower.contains("no space left") {
        "the disk is full"
    } else {
        "the first build needs the network; connect, or set FORERUN_MLX_DIR to an unpacked MLX"
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// mlx-c's source folder: given, or inside the registry's package that `vendor/Cargo.toml` pins.
pub fn mlxc(plan: &Plan, vendor: &Path) -> Result<PathBuf, String> {
    let dir = match &plan.mlxc {
        Some(dir) => dir.clone(),
        None => pinned_mlxc(&vendor.join("Cargo.toml"))?,
    };
    match dir.join("mlx/c/mlx.h").exists() {
        true => Ok(dir),
        false => Err(format!(
            "{} has no mlx/c/mlx.h; FORERUN_MLXC_DIR should be the source folder of mlx-c {MLXC_VERSION}",
            dir.display()
        )),
    }
}

fn pinned_mlxc(manifest: &Path) -> Result<PathBuf, String> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(manifest)
        // The outer build's wishes are not this query's.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .map_err(|err| format!("cannot run cargo to find mlx-c: {err}"))?;
    if !output.status.success() {
        return Err(format!(
            "cannot find mlx-c {MLXC_VERSION} in the registry (the first build needs the network; or set \
             FORERUN_MLXC_DIR): {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|err| format!("cargo metadata: {err}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let pinned =
        packages.into_iter().find(|p| p["name"] == "mlx-sys").and_then(|p| p["manifest_path"].as_str());
    let manifest = pinned.ok_or("cargo metadata lists no package `mlx-sys`")?;
    Ok(Path::new(manifest).with_file_name("src").join("mlx-c"))
}

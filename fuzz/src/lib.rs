//! What the targets share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A folder of this process alone, in memory where the system has such.
pub fn scratch() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = root.join(format!("forerun-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder can be made");
        folder
    })
}

/// Writes one file of the scratch folder.
pub fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    fs::write(&path, bytes).expect("a scratch file can be written");
    path
}

/// A panic that the code under test contains is none; one that escapes still ends the run.
pub fn contain_panics() {
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
}

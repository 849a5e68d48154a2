//! The structure that ARCHITECTURE.md promises, checked on the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Lowest first.
const ENGINE: [&str; 11] = [
    "protocol", "text", "hub", "weights", "lm", "sampling", "schedule", "prefix", "executor", "thread",
    "load",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display())) {
        let path = entry.expect("a folder can be listed").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "bindings.rs" {
            found.push(path);
        }
    }
}

fn all() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    sources(&root(), &mut found);
    assert!(40 < found.len(), "only {} sources were found", found.len());
    found
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(path).expect("a source is text")))
        .collect()
}

#[test]
fn engine_modules_depend_downward_only() {
    let src = root().join("engine/src");
    for (path, text) in all().into_iter().filter(|(path, _)| path.starts_with(&src)) {
        let module = path.strip_prefix(&src).unwrap().components().next().unwrap();
        let module = module.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned();
        let Some(floor) = ENGINE.iter().position(|name| *name == module) else {
            assert_eq!(module, "lib", "{} is not on the list", path.display());
            continue;
        };
        // `weights` builds the blocks of `lm::nn` while it hands out tensors; nothing else looks up.
        let above = ENGINE[floor + 1..].iter().filter(|name| !(module == "weights" && **name == "lm"));
        for name in above {
            let uses = text.lines().any(|line| line.contains(&format!("crate::{name}")));
            assert!(!uses, "{} uses {name}, which stands above it", path.display());
        }
    }
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    for (path, text) in all() {
        let lines = text.lines().count();
        assert!(lines <= 600, "{} has {lines} lines", path.display());
        let is_test = path.file_name().is_some_and(|name| name == "tests.rs");
        assert!(
            is_test || text.is_empty() || text.starts_with("//!"),
            "{} does not open with `//!`",
            path.display()
        );
    }
}

#[test]
fn the_environment_is_read_in_the_command_line_and_build_scripts_only() {
    let root = root();
    for (path, text) in all() {
        let inside = path.strip_prefix(&root).unwrap();
        let name = inside.to_string_lossy();
        let allowed = name.starts_with("cli/")
            || name.contains("build")
            || name.starts_with("tests/")
            || name.contains("/tests");
        assert!(allowed || !text.contains("env::var"), "{name} reads the environment");
    }
}

#[test]
fn unsafe_stays_in_the_array_crates() {
    let root = root();
    for (path, text) in all() {
        let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let allowed = name.starts_with("mlx-") || name.ends_with("tidy.rs");
        let found = text.lines().any(|line| line.contains("unsafe {") || line.contains("unsafe fn"));
        assert!(allowed || !found, "{name} has unsafe code");
    }
}

//! The committed bindings, made anew with the feature `bindgen`.

use std::path::Path;

#[cfg(not(feature = "bindgen"))]
pub fn regenerate(_sources: &Path, _package: &Path) -> Result<(), String> {
    Ok(())
}

/// Writes `src/bindings.rs` from mlx-c's headers.
#[cfg(feature = "bindgen")]
pub fn regenerate(sources: &Path, package: &Path) -> Result<(), String> {
    let folder = sources.join("mlx/c");
    let entries = std::fs::read_dir(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let mut headers: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    headers.retain(|path| path.extension().is_some_and(|e| e == "h"));
    headers.sort();
    let mut builder = bindgen::Builder::default()
        .rust_target("1.82.0".parse().map_err(|err| format!("rust target: {err:?}"))?)
        .clang_arg(format!("-I{}", sources.display()))
        // Only what is mlx-c's own, so that the outcome is the same over any system's headers; src/lib.rs declares
        // what differs by processor or system.
        .allowlist_item("_?mlx_.*")
        .blocklist_item("b?float16_t|mlx_array_(item|data)_b?float16")
        .blocklist_type("FILE|_IO_.*|__off.*");
    for header in &headers {
        builder = builder.header(header.to_string_lossy());
    }
    let bindings = builder.generate().map_err(|err| format!("bindgen: {err}"))?;
    let path = package.join("src/bindings.rs");
    bindings.write_to_file(&path).map_err(|err| format!("{}: {err}", path.display()))
}

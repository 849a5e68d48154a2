use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
fn main() {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let vendor = manifest.join("../vendor/Cargo.toml");
    let out = Command::new(env::var("CARGO").unwrap())
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(&vendor)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let meta: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let pkg = meta["packages"].as_array().unwrap().iter().find(|p| p["name"] == "mlx-sys").unwrap();
    let mlxc = Path::new(pkg["manifest_path"].as_str().unwrap()).parent().unwrap().join("src/mlx-c");
    let cache = PathBuf::from(env::var("HOME").unwrap()).join(".cache/forerun/proto");
    let mlx = cache.join("mlx");
    if !mlx.join("lib/libmlx.so").exists() {
        fs::create_dir_all(&cache).unwrap();
        assert!(Command::new("python3")
            .args(["-m", "pip", "download", "-q", "--no-deps", "mlx-cpu==0.32.4", "-d"])
            .arg(&cache)
            .status()
            .unwrap()
            .success());
        let whl = fs::read_dir(&cache)
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|p| p.extension().is_some_and(|e| e == "whl"))
            .unwrap();
        assert!(Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&whl)
            .arg(&cache)
            .status()
            .unwrap()
            .success());
    }
    let lib = cache.join("libmlxc.a");
    if !lib.exists() {
        let mut b = cc::Build::new();
        b.cpp(true)
            .std("c++20")
            .pic(true)
            .opt_level(2)
            .debug(false)
            .warnings(false)
            .cargo_metadata(false)
            .flag("-include")
            .flag(manifest.join("native/compat.h").to_str().unwrap())
            .include(&mlxc)
            .include(mlx.join("include"));
        for e in fs::read_dir(mlxc.join("mlx/c")).unwrap() {
            let p = e.unwrap().path();
            if p.extension().is_some_and(|e| e == "cpp") {
                b.file(p);
            }
        }
        b.file(manifest.join("native/portable.cpp"));
        b.compile("mlxc");
        fs::copy(PathBuf::from(env::var("OUT_DIR").unwrap()).join("libmlxc.a"), &lib).unwrap();
    }
    println!("cargo:rustc-link-search=native={}", cache.display());
    println!("cargo:rustc-link-lib=static=mlxc");
    println!("cargo:rustc-link-search=native={}", mlx.join("lib").display());
    println!("cargo:rustc-link-lib=dylib=mlx");
    println!("cargo:rustc-link-lib=dylib=stdc++");
    println!("cargo::metadata=include={}:{}", mlx.join("include").display(), mlxc.display());
    println!("cargo::metadata=defines=");
    println!("cargo::metadata=version=0.32.4");
    println!("cargo::metadata=lib={}", mlx.join("lib").display());
    println!("cargo:rerun-if-changed=native");
}

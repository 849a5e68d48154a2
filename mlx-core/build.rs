//! Compiles what extends MLX in C++, and tells every binary of this crate where the MLX library is.

use std::env;
use std::path::Path;

fn main() {
    let metadata = |key: &str| {
        let key = format!("DEP_MLX_{key}");
        env::var(&key).unwrap_or_else(|_| panic!("mlx-sys publishes {key}"))
    };
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").opt_level(2).warnings(false);
    for folder in env::split_paths(&metadata("INCLUDE")) {
        build.include(folder);
    }
    for define in metadata("DEFINES").split(',').filter(|d| !d.is_empty()) {
        build.define(define, None);
    }
    build.file(Path::new("native/extras.cpp")).compile("forerun_extras");
    println!("cargo::rerun-if-changed=native");

    // Cargo does not pass link arguments on to dependents; they repeat this line with what is published here.
    let lib = metadata("LIB");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    println!("cargo::metadata=rpath={lib}");
}

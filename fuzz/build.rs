//! Gives binaries and tests the run path of the MLX library.

fn main() {
    let path = std::env::var("DEP_FORERUN_MLX_CORE_RPATH").expect("mlx-core publishes its run path");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{path}");
}

//! Gives every binary of this crate the run path of the MLX library.
fn main() {
    let lib = std::env::var("DEP_MLX_LIB").expect("mlx-sys publishes its library folder");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
}

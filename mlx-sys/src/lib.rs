//! Raw FFI to mlx-c 0.7.0 over a prebuilt MLX, for any platform.
#![allow(non_upper_case_globals, non_camel_case_types, non_snake_case, missing_docs, clippy::all)]
#![allow(unused_qualifications, unreachable_pub)]

include!("bindings.rs");

// mlx-c's headers declare the half-precision accessors on arm only; `native/portable.cpp` supplies
// them elsewhere, and these are their declarations in the form that bindgen gives them there.
#[cfg(not(target_arch = "aarch64"))]
pub use portable::*;
#[cfg(not(target_arch = "aarch64"))]
mod portable {
    use super::mlx_array;

    #[repr(transparent)]
    #[derive(Debug, Default, Copy, Clone)]
    pub struct float16_t(pub u16);
    pub type bfloat16_t = u16;

    extern "C" {
        pub fn mlx_array_item_float16(res: *mut float16_t, arr: mlx_array) -> ::std::os::raw::c_int;
        pub fn mlx_array_item_bfloat16(res: *mut bfloat16_t, arr: mlx_array) -> ::std::os::raw::c_int;
        pub fn mlx_array_data_float16(arr: mlx_array) -> *const float16_t;
        pub fn mlx_array_data_bfloat16(arr: mlx_array) -> *const bfloat16_t;
    }
}

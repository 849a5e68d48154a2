//! Raw FFI to mlx-c 0.7.0 over a prebuilt MLX, for any platform.
#![allow(
    clippy::all,
    clippy::allow_attributes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    reason = "generated from C"
)]

include!("bindings.rs");

/// C's file handle, only ever behind a pointer.
#[repr(C)]
pub struct FILE {
    _private: [u8; 0],
}

// mlx-c's headers declare the half-precision accessors on arm only, where a half float goes by pointer as any
// 16 bits do; elsewhere `native/portable.cpp` supplies them. So these declarations hold everywhere.
#[repr(transparent)]
#[derive(Debug, Default, Copy, Clone)]
pub struct float16_t(pub u16);
pub type bfloat16_t = u16;

unsafe extern "C" {
    pub fn mlx_array_item_float16(res: *mut float16_t, arr: mlx_array) -> ::std::os::raw::c_int;
    pub fn mlx_array_item_bfloat16(res: *mut bfloat16_t, arr: mlx_array) -> ::std::os::raw::c_int;
    pub fn mlx_array_data_float16(arr: mlx_array) -> *const float16_t;
    pub fn mlx_array_data_bfloat16(arr: mlx_array) -> *const bfloat16_t;
}

// What mlx-c lacks: ops whose body is a Rust function, and bindings of a few C++ entry points.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "mlx/c/array.h"
#include "mlx/c/stream.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

// A row-major tensor inside a running op.
typedef struct forerun_view_ {
  void* data;
  const int* shape;
  size_t ndim;
  size_t size;
  mlx_dtype dtype;
} forerun_view;

typedef struct forerun_output_ {
  const int* shape;
  size_t ndim;
  mlx_dtype dtype;
  // Index of the input whose contents the output starts with, or -1.
  int from_input;
} forerun_output;

// Computes outputs from inputs. Runs on the stream's thread and must not throw or unwind. Returns null, or why
// it failed: a string of `malloc`, which the caller frees.
typedef char* (*forerun_run)(
    void* context,
    const forerun_view* inputs,
    size_t num_inputs,
    const forerun_view* outputs,
    size_t num_outputs);

// Builds the lazily evaluated outputs of one op. Takes ownership of `context`, which `drop` frees.
int forerun_custom_op(
    mlx_vector_array* results,
    const char* name,
    const mlx_vector_array inputs,
    const forerun_output* outputs,
    size_t num_outputs,
    forerun_run run,
    void* context,
    void (*drop)(void*),
    const mlx_stream stream);

// An array over foreign memory, which `release` is told to let go. Eight bytes before `data` must be readable.
mlx_array forerun_array_over(
    void* data,
    const int* shape,
    size_t ndim,
    mlx_dtype dtype,
    void* payload,
    void (*release)(void*));

int forerun_gated_delta_update(
    mlx_vector_array* results,
    const mlx_array queries,
    const mlx_array keys,
    const mlx_array values,
    const mlx_array gates,
    const mlx_array beta,
    const mlx_array state /* may be null */,
    const mlx_array mask /* may be null */,
    const mlx_stream stream);

int forerun_gather_qmm(
    mlx_array* result,
    const mlx_array x,
    const mlx_array w,
    const mlx_array scales,
    const mlx_array biases /* may be null */,
    const mlx_array lhs_indices /* may be null */,
    const mlx_array rhs_indices /* may be null */,
    int group_size,
    int bits,
    const char* mode,
    const mlx_array global_scale /* may be null */,
    bool sorted_indices,
    const mlx_stream stream);

#ifdef __cplusplus
}
#endif

// Before any <float.h>: Apple's C++ library has no INFINITY after it.
#include <cmath>

#include "extras.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/error.h"
#include "mlx/c/private/array.h"
#include "mlx/c/private/enums.h"
#include "mlx/c/private/stream.h"
#include "mlx/c/private/vector.h"
#include "mlx/device.h"
#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

namespace mx = mlx::core;

namespace {

// Copies any strided tensor to row-major order.
void copy_strided(
    char* to,
    const char* from,
    const mx::Shape& shape,
    const mx::Strides& strides,
    size_t axis,
    size_t itemsize) {
  if (axis == shape.size()) {
    std::memcpy(to, from, itemsize);
    return;
  }
  size_t inner = itemsize;
  for (size_t i = axis + 1; i < shape.size(); i++) {
    inner *= shape[i];
  }
  for (int i = 0; i < shape[axis]; i++) {
    copy_strided(to + i * inner, from + i * strides[axis] * itemsize, shape, strides, axis + 1, itemsize);
  }
}

// A tensor that stays valid until its task has run: the shape is a copy, the data are held by MLX.
struct Tensor {
  void* data;
  mx::Shape shape;
  mx::Strides strides;
  size_t size;
  size_t nbytes;
  mlx_dtype dtype;
  bool contiguous;

  explicit Tensor(mx::array& a)
      : data(a.data<char>()),
        shape(a.shape()),
        strides(a.strides()),
        size(a.size()),
        nbytes(a.nbytes()),
        dtype(mlx_dtype_to_c(a.dtype())),
        contiguous(a.flags().row_contiguous) {}

  forerun_view view() const {
    return {data, shape.data(), shape.size(), size, dtype};
  }
};

class RustOp : public mx::Primitive {
 public:
  RustOp(
      mx::Stream stream,
      std::string name,
      std::vector<mx::Shape> shapes,
      std::vector<int> from_input,
      forerun_run run,
      std::shared_ptr<void> context)
      : Primitive(stream),
        name_(std::move(name)),
        shapes_(std::move(shapes)),
        from_input_(std::move(from_input)),
        run_(run),
        context_(std::move(context)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<Tensor> ins, outs;
    std::vector<int> copies;
    // Each result holds the inputs too, so that none would ever seem to have a single owner.
    for (auto& out : outputs) {
      if (&out.inputs() != &inputs) {
        out.inputs().clear();
      }
    }
    for (auto& input : inputs) {
      auto a = input;
      ins.emplace_back(a);
    }
    for (size_t i = 0; i < outputs.size(); i++) {
      auto& out = outputs[i];
      int from = from_input_[i];
      bool donated = from >= 0 && inputs[from].is_donatable() && ins[from].contiguous &&
          ins[from].nbytes == out.nbytes() && inputs[from].data_size() == inputs[from].size();
      if (donated) {
        out.copy_shared_buffer(inputs[from]);
      } else {
        out.set_data(mx::allocator::malloc(out.nbytes()));
      }
      outs.emplace_back(out);
      copies.push_back(donated ? -1 : from);
    }
    encoder.dispatch([run = run_,
                      context = context_,
                      ins = std::move(ins),
                      outs = std::move(outs),
                      copies = std::move(copies),
                      from_input = from_input_]() mutable {
      std::vector<std::unique_ptr<char[]>> temporaries;
      std::vector<forerun_view> in_views, out_views;
      for (auto& in : ins) {
        if (!in.contiguous && in.size > 0) {
          size_t itemsize = in.nbytes / in.size;
          temporaries.emplace_back(new char[in.nbytes]);
          copy_strided(
              temporaries.back().get(), static_cast<char*>(in.data), in.shape, in.strides, 0, itemsize);
          in.data = temporaries.back().get();
        }
        in_views.push_back(in.view());
      }
      for (size_t i = 0; i < outs.size(); i++) {
        if (copies[i] >= 0) {
          std::memcpy(outs[i].data, in_views[copies[i]].data, outs[i].nbytes);
        }
        out_views.push_back(outs[i].view());
      }
      // A kernel must not see one buffer both as an input and as a result.
      for (int from : from_input) {
        if (from >= 0) {
          in_views[from].data = nullptr;
        }
      }
      char* failure =
          run(context.get(), in_views.data(), in_views.size(), out_views.data(), out_views.size());
      if (failure) {
        std::string message(failure);
        std::free(failure);
        // Whoever reads the results in spite of the error must not see memory that was somebody else's.
        for (auto& out : outs) {
          std::memset(out.data, 0, out.nbytes);
        }
        throw std::runtime_error(message);
      }
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[" + name_ + "] runs on the CPU only");
  }

  const char* name() const override {
    return name_.c_str();
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override {
    return shapes_;
  }

 private:
  std::string name_;
  std::vector<mx::Shape> shapes_;
  std::vector<int> from_input_;
  forerun_run run_;
  std::shared_ptr<void> context_;
};

/// The CPU allocator finds a buffer's data behind a header of this size.
constexpr size_t HEADER = sizeof(size_t);

std::optional<mx::array> optional(const mlx_array a) {
  return a.ctx ? std::make_optional(mlx_array_get_(a)) : std::nullopt;
}

} // namespace

extern "C" int forerun_custom_op(
    mlx_vector_array* results,
    const char* name,
    const mlx_vector_array inputs,
    const forerun_output* outputs,
    size_t num_outputs,
    forerun_run run,
    void* context,
    void (*drop)(void*),
    const mlx_stream stream) {
  try {
    std::shared_ptr<void> owned(context, drop);
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    std::vector<int> from_input;
    for (size_t i = 0; i < num_outputs; i++) {
      auto& o = outputs[i];
      shapes.emplace_back(o.shape, o.shape + o.ndim);
      dtypes.push_back(mlx_dtype_to_cpp(o.dtype));
      from_input.push_back(o.from_input);
    }
    auto primitive = std::make_shared<RustOp>(
        mlx_stream_get_(stream), name, shapes, std::move(from_input), run, std::move(owned));
    mlx_vector_array_set_(
        *results,
        mx::array::make_arrays(
            std::move(shapes), dtypes, std::move(primitive), mlx_vector_array_get_(inputs)));
    return 0;
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
}

extern "C" mlx_array forerun_array_over(
    void* data,
    const int* shape,
    size_t ndim,
    mlx_dtype dtype,
    void* payload,
    void (*release)(void*)) {
  try {
    mx::Shape dims(shape, shape + ndim);
    auto type = mlx_dtype_to_cpp(dtype);
    // Without a GPU, `make_buffer` has no form for foreign memory and MLX would copy it. A buffer of ours that
    // starts a header earlier has its data in the right place, and its deleter keeps the allocator off it.
    if (!mx::is_available(mx::Device::gpu)) {
      mx::allocator::Buffer buffer(static_cast<char*>(data) - HEADER);
      if (buffer.raw_ptr() == data) {
        auto deleter = [=](mx::allocator::Buffer) { release(payload); };
        return mlx_array_new_(mx::array(mx::allocator::Data(buffer, deleter), std::move(dims), type));
      }
    }
    auto deleter = [=](void*) { release(payload); };
    return mlx_array_new_(mx::array(data, std::move(dims), type, deleter));
  } catch (std::exception& e) {
    release(payload);
    mlx_error(e.what());
    return mlx_array_new_();
  }
}

extern "C" int forerun_gated_delta_update(
    mlx_vector_array* results,
    const mlx_array queries,
    const mlx_array keys,
    const mlx_array values,
    const mlx_array gates,
    const mlx_array beta,
    const mlx_array state,
    const mlx_array mask,
    const mlx_stream stream) {
  try {
    mlx_vector_array_set_(
        *results,
        mx::fast::gated_delta_update(
            mlx_array_get_(queries),
            mlx_array_get_(keys),
            mlx_array_get_(values),
            mlx_array_get_(gates),
            mlx_array_get_(beta),
            optional(state),
            optional(mask),
            mlx_stream_get_(stream)));
    return 0;
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
}

extern "C" int forerun_gather_qmm(
    mlx_array* result,
    const mlx_array x,
    const mlx_array w,
    const mlx_array scales,
    const mlx_array biases,
    const mlx_array lhs_indices,
    const mlx_array rhs_indices,
    int group_size,
    int bits,
    const char* mode,
    const mlx_array global_scale,
    bool sorted_indices,
    const mlx_stream stream) {
  try {
    mlx_array_set_(
        *result,
        mx::gather_qmm(
            mlx_array_get_(x),
            mlx_array_get_(w),
            mlx_array_get_(scales),
            optional(biases),
            optional(lhs_indices),
            optional(rhs_indices),
            true,
            group_size,
            bits,
            std::string(mode),
            optional(global_scale),
            sorted_indices,
            mlx_stream_get_(stream)));
    return 0;
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
}

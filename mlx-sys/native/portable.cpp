// Symbols that mlx-rs calls and that exist only on Apple silicon: half-precision accessors, which
// mlx-c compiles for arm only, and the Mach clock.
#include <chrono>
#include <cstdint>

#include "mlx/c/array.h"
#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"

#if !defined(__APPLE__)
extern "C" uint64_t mach_approximate_time() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
#endif

#if !defined(HAS_FLOAT16)
extern "C" const uint16_t* mlx_array_data_float16(const mlx_array arr) {
  try {
    return mlx_array_get_(arr).data<uint16_t>();
  } catch (std::exception& e) {
    mlx_error(e.what());
    return nullptr;
  }
}

extern "C" int mlx_array_item_float16(uint16_t* res, const mlx_array arr) {
  try {
    auto value = mlx_array_get_(arr).item<mlx::core::float16_t>();
    *res = reinterpret_cast<const uint16_t&>(value);
    return 0;
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
}
#endif

#if !defined(HAS_BFLOAT16)
extern "C" const uint16_t* mlx_array_data_bfloat16(const mlx_array arr) {
  try {
    return mlx_array_get_(arr).data<uint16_t>();
  } catch (std::exception& e) {
    mlx_error(e.what());
    return nullptr;
  }
}

extern "C" int mlx_array_item_bfloat16(uint16_t* res, const mlx_array arr) {
  try {
    auto value = mlx_array_get_(arr).item<mlx::core::bfloat16_t>();
    *res = reinterpret_cast<const uint16_t&>(value);
    return 0;
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
}
#endif

// Force-included before every mlx-c source: what mlx-c 0.7.0 (written for MLX 0.32.2) lacks to build
// against MLX 0.32.4 with the C++ libraries that users have.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <version>

#ifdef __cpp_lib_format
#include <format>
#else
// libstdc++ before 13 has no <format>. mlx-c only ever writes plain `{}` fields.
namespace std {
namespace forerun_compat {
inline void put(ostringstream& out, string_view& pattern) {
  out << pattern;
  pattern = {};
}
template <typename First, typename... Rest>
void put(ostringstream& out, string_view& pattern, const First& first, const Rest&... rest) {
  auto at = pattern.find("{}");
  if (at == string_view::npos) {
    out << pattern;
    pattern = {};
    return;
  }
  out << pattern.substr(0, at) << first;
  pattern.remove_prefix(at + 2);
  put(out, pattern, rest...);
}
} // namespace forerun_compat

template <typename... Args>
string format(string_view pattern, const Args&... args) {
  ostringstream out;
  forerun_compat::put(out, pattern, args...);
  return out.str();
}
} // namespace std
#endif

#include "mlx/ops.h"

namespace mlx::core {
// MLX 0.32.4 put `global_scale` before `sorted_indices`; mlx-c calls the older form.
inline array gather_qmm(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    std::optional<array> lhs_indices,
    std::optional<array> rhs_indices,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    bool sorted_indices,
    StreamOrDevice s) {
  return gather_qmm(
      x, w, scales, biases, std::move(lhs_indices), std::move(rhs_indices), transpose, group_size,
      bits, mode, std::optional<array>{}, sorted_indices, s);
}
} // namespace mlx::core

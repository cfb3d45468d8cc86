// Launches Neap's kernels (src/kernels/cuda) for operations: names, grids, and requirements of
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/format.h"
#include "base/status.h"
#include "bridge/streams.h"
#include "kernels/card_kernels.h"

namespace neap::ops::own {

constexpr std::int64_t kMostRowsOfGrid = 65535;  // blocks along y; kernels loop over the rest
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kVectorBytes = 16;

inline std::uintptr_t address_of(const at::Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr());
}

// Elements per vector if rows of every tensor begin and end at multiples of 16 bytes, else 1.
inline std::int64_t vector_width(std::initializer_list<at::Tensor> tensors,
                                 std::initializer_list<std::int64_t> lengths) {
  const std::int64_t width = kVectorBytes / tensors.begin()->element_size();
  const auto whole = [&](std::int64_t elements) { return elements % width == 0; };
  for (const at::Tensor& t : tensors) {
    if (address_of(t) % kVectorBytes != 0) return 1;
    for (std::int64_t i = 0; i + 1 < t.dim(); ++i)
      if (!whole(t.stride(i))) return 1;
  }
  return std::ranges::all_of(lengths, whole) ? width : 1;
}

inline const char* type_name(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 ? "bf16" : "f32";
}
inline std::string kernel_name(std::string_view what, const at::Tensor& t, std::int64_t width) {
  return format("{}_{}_{}", what, type_name(t), width > 1 ? "vector" : "single");
}

// `items` in blocks of at most `most` threads.
inline kernels::Grid grid_of(std::int64_t items, std::int64_t rows, std::int64_t most) {
  const std::int64_t threads = std::min(most, (items + kWarp - 1) / kWarp * kWarp);
  return {(items + threads - 1) / threads, std::min(rows, kMostRowsOfGrid), threads};
}

inline void check(const at::Tensor& t, const at::Tensor& like, const char* what) {
  if (t.scalar_type() == like.scalar_type() && t.is_cuda() && t.stride(-1) == 1) return;
  throw Error(
      ErrorCode::kInternal,
      format("{}: a kernel takes tensors of one type on a GPU with rows of neighbours", what));
}

// Requires contiguous rows that can be read as vectors.
inline void check_whole(const at::Tensor& t, const at::Tensor& like, const char* what) {
  check(t, like, what);
  if (t.is_contiguous() && address_of(t) % kVectorBytes == 0) return;
  throw Error(ErrorCode::kInternal, format("{}: a kernel takes rows without gaps", what));
}

template <class... Arguments>
void launch(const at::Tensor& on, const char* source, const std::string& kernel,
            const kernels::Grid& grid, Arguments... arguments) {
  kernels::CardKernels* const card =
      value_or_throw(kernels::CardKernels::of(static_cast<int>(on.device().index())));
  void* const stream = bridge::native_handle(bridge::current_stream(on.device()));
  throw_if_error(card->launch(source, kernel, grid, stream, arguments...));
}

inline float* numbers(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}
inline const float* read_numbers(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

// (rows, columns), as one row if all tensors are contiguous.
struct Extent {
  std::int64_t rows, columns;
};
inline Extent extent_of(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  const bool whole =
      std::ranges::all_of(tensors, [](const at::Tensor& t) { return t.is_contiguous(); });
  return whole ? Extent{1, first.numel()} : Extent{first.size(0), first.size(1)};
}

}  // namespace neap::ops::own

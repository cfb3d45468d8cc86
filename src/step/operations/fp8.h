// Tensors in fp8: one byte for each value and one scale for all, a power of two.
//
// Scale     With a power of two only the conversion rounds. A value loses further digits only below
//           2^-13 of the largest (e4m3). The scale is made of the tensor itself, not of
//           earlier ones, so results depend on nothing that a checkpoint would have to keep.
// Formats   Values of activations and weights have 4 significant bits (e4m3). Gradients have 3 and a wider
//           range (e5m2), because those of a micro-batch's tokens differ by more than e4m3's 2^17.
// Products  GPUs multiply fp8 along rows of both factors, so gradients take transposed copies.
#pragma once

#include <cstdint>

#include "kernels/fp8_sizes.h"

namespace neap::step {

enum class Fp8Format : std::uint8_t { kE4m3, kE5m2 };

/// Which copies of (m, n): (m, n) itself, the transposed (n, m), or both.
enum class Fp8Sides : std::uint8_t { kRows, kColumns, kBoth };

/// Copies of one tensor (m, n) in fp8.
template <class T>
struct Fp8Copies {
  T rows;     // (m, n); undefined: not made
  T columns;  // (n, m), with m filled up with zeros to a multiple of kernels::fp8::kUnit
  T scale;    // (1,) float32: what a value of 1 stands for
};

/// How a GPU adds up a product's terms. The error of fast sums grows with their length: 16 384 terms are
/// off by 0.27 % of the sum's size, exact ones by 0.01 % (an H200). Sums over tokens are exact, so that
/// micro-batches of every size have gradients of one quality.
enum class Fp8Sums : std::uint8_t { kFast, kExact };

/// A factor of a product.
template <class T>
struct Fp8Factor {
  T values, scale;
};

[[nodiscard]] constexpr std::int64_t fp8_padded(std::int64_t rows) {
  constexpr std::int64_t kUnit = kernels::fp8::kUnit;
  return (rows + kUnit - 1) / kUnit * kUnit;
}
/// Whether products with a matrix of these sizes are in fp8. GPUs multiply only multiples of kUnit; the
/// CPU follows them, so that it computes the same numbers.
[[nodiscard]] constexpr bool fits_fp8(std::int64_t rows, std::int64_t columns) {
  return fp8_padded(rows) == rows && fp8_padded(columns) == columns;
}
/// Thread blocks of fp8.cu that look for the largest value.
[[nodiscard]] constexpr std::int64_t fp8_blocks(std::int64_t elements) {
  using namespace kernels::fp8;
  const std::int64_t blocks = (elements + kOfBlock - 1) / kOfBlock;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

}  // namespace neap::step

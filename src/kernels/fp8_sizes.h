// Sizes of the kernels that convert to fp8. Included by their source (cuda/fp8.cu) and by the code that
// plans and launches them.
#pragma once

namespace neap::kernels::fp8 {

constexpr int kThreads = 256;      ///< of a block
constexpr int kOfThread = 8;       ///< elements of a row that a thread reads at once
constexpr int kTile = 128;         ///< rows, and columns, that a block converts
constexpr int kMostBlocks = 1024;  ///< that look for the largest value; each writes it
constexpr int kOfBlock = 8192;     ///< elements that such a block reads at least
/// Rows of the transposed copy are filled up with zeros to a multiple of this, and so are sizes of a
/// product's operands.
constexpr int kUnit = 16;

}  // namespace neap::kernels::fp8

// Sizes and arguments of the decoding kernels. Included by their sources (append.cu, attend.cu,
// few_rows.cu, some_rows.cu) and by the code that plans and launches them.
#pragma once

namespace neap::kernels::decoding {

/// Strides of new heads (B, heads, width) and of the cache (B', heads, tokens, width).
struct HeadStrides {
  long long q_row, q_head, k_row, k_head, v_row, v_head;
  long long keys_row, keys_head, values_row, values_head;
};

/// RMS norms of queries and keys.
struct HeadNorms {
  float eps, offset;
};

struct Append {
  HeadStrides strides;
  HeadNorms norms;
  int heads, key_heads, width;
  int half;      ///< half of the rotated columns; 0: no rotation
  float factor;  ///< of cosine and sine
};

struct Attend {
  HeadStrides strides;
  HeadNorms norms;
  int heads, key_heads, width;
  int half;      ///< half of the rotated columns; 0: no rotation
  float factor;  ///< of cosine and sine
  float scale;   ///< of scores, for powers of two
  int window;    ///< 0: all keys
  int share;     ///< keys of a block
};

constexpr int kWarp = 32;   ///< threads
constexpr int kOfLane = 8;  ///< columns that a thread reads at once
constexpr int kTile = 8;    ///< rows of a matrix, or of x, that are multiplied together

constexpr int kWarps = 16;  ///< of a block of few_rows.cu

// A block of some_rows.cu:
constexpr int kRowsOfBlock = 64;  ///< of matrices
constexpr int kShares = 2;        ///< warps that have the same rows, and share the columns
constexpr int kSomeRowsThreads = kWarp * (kRowsOfBlock / (2 * kTile)) * kShares;

constexpr int kNoActivation = -1;

/// Contiguous matrices (out, in) that multiply the same rows.
template <class T>
struct Matrices {
  const T* weight[3];
  const T* bias[3];  ///< null: none
  int out[3];        ///< multiples of kTile; a row has the results side by side
};

}  // namespace neap::kernels::decoding

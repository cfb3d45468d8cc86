// Sizes and arguments of the decoding kernels. Included by their sources (append.cu, attend.cu, few_rows.cu,
// normed_rows.cu, some_rows.cu, adapters.cu) and by the code that plans and launches them.
#pragma once

#ifdef __CUDACC__
#define NEAP_DEVICE __device__
#else
#define NEAP_DEVICE
#endif

namespace neap::kernels::decoding {

/// Strides of new heads (B, heads, width) and of the cache: (B', heads, tokens, width), or pages
/// (pages, heads, kPageTokens, width) in place of rows.
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
  int pages;     ///< of a row of the page table; 0: a row's tokens are contiguous
};

constexpr int kWarp = 32;   ///< threads
constexpr int kOfLane = 8;  ///< columns that a thread reads at once
constexpr int kTile = 8;    ///< rows of a matrix, or of x, that are multiplied together

constexpr int kPageTokens = 64;  ///< tokens of a page of the KV cache

// A block of few_rows.cu or normed_rows.cu:
constexpr int kWarps = 16;
constexpr int kRoundColumns = 32 * kWarps;      ///< that its warps multiply at once
constexpr int kMostNormed = 4 * kRoundColumns;  ///< columns of x in normed_rows.cu

constexpr int kMostHeads = 4;  ///< that share keys, of a block of attend.cu

// A block of some_rows.cu:
constexpr int kMostTiles = 8;     ///< of x
constexpr int kRowsOfBlock = 64;  ///< of matrices
constexpr int kSomeRowsThreads = 128;
constexpr int kColumnsOfChunk = 64;
/// Bytes of a chunk of the matrices and of so many tiles of x.
NEAP_DEVICE constexpr int bytes_of_chunk(int tiles) {
  return 2 * kColumnsOfChunk * (kRowsOfBlock + tiles * kTile);
}
/// Chunks in shared memory at once, where a multiprocessor has so many blocks.
NEAP_DEVICE constexpr int ring_of(int tiles, int blocks) {
  constexpr int kMultiprocessor = 228 << 10, kReserved = 1 << 10;  // bytes of Hopper
  return (kMultiprocessor / blocks - kReserved) / bytes_of_chunk(tiles);
}

constexpr int kNoActivation = -1;

constexpr int kMostMatrices = 6;

/// Contiguous matrices (out, in) that multiply the same rows.
template <class T>
struct Matrices {
  const T* weight[kMostMatrices];
  const T* bias[kMostMatrices];  ///< null: none
  int out[kMostMatrices];        ///< multiples of kTile; a row has the results side by side
  /// Columns of a row of the results.
  [[nodiscard]] NEAP_DEVICE constexpr int columns() const {
    int sum = 0;
    for (const int n : out) sum += n;
    return sum;
  }
};

/// A norm of rows of x before they are multiplied: x / rms (weight + offset), or centered, with a bias.
template <class T>
struct RowsNorm {
  const T* weight;  ///< null on the host: no norm
  const T* bias;    ///< null: none
  float eps, offset;
  int centered;
};

constexpr int kMostAdapters = kMostMatrices / 2;
constexpr int kMostRank = 128;       ///< of an adapter
constexpr int kAdapterThreads = 64;  ///< of a block of adapters.cu

/// Second matrices of the adapters of up to three matrices, contiguous (out, rank).
template <class T>
struct Adapters {
  const T* up[kMostAdapters];
  int out[kMostAdapters];   ///< of the matrices
  int rank[kMostAdapters];  ///< multiples of kOfLane; 0: no adapter
  float scale[kMostAdapters];
};

}  // namespace neap::kernels::decoding

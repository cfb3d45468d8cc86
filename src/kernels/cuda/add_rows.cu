// table[indices[i]] += rows[i]. Rows with the same index are added in ascending order, so results
// are reproducible. If row x is the first with its index, block x adds all rows with that index;
// blocks along y have columns. A thread has N adjacent elements, and a block at most kMostThreads
// threads.

constexpr int kMostThreads = 256;
constexpr int kAtOnce = 8;  // loads in flight
constexpr unsigned kAll = 0xffffffffu;

__device__ inline bool is_first(const long long* indices, long long row) {
  const long long index = indices[row];
  for (long long end = row; end > 0; end -= static_cast<long long>(blockDim.x)) {
    const long long at = end - 1 - static_cast<long long>(threadIdx.x);
    if (__syncthreads_or(at >= 0 && indices[at] == index)) return false;
  }
  return true;
}

/// Lists which of blockDim.x indices from `begin` on equal `index`: in ascending order, relative to
/// `begin`, with their number. All threads of the block call it.
__device__ inline int find(const long long* indices, long long begin, long long count, long long index,
                           int* found) {
  __shared__ int of_warps[kMostThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const long long at = begin + static_cast<long long>(threadIdx.x);
  const bool hit = at < count && indices[at] == index;
  const unsigned hits = __ballot_sync(kAll, hit);
  __syncthreads();  // the list before is read
  if (lane == 0) of_warps[warp] = __popc(hits);
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp) before += of_warps[w];
    all += of_warps[w];
  }
  if (hit) found[before + __popc(hits & ((1u << lane) - 1u))] = static_cast<int>(threadIdx.x);
  __syncthreads();
  return all;
}

template <class Table, class Row, int N>
__device__ inline void add_rows(Table* table, long long table_stride, const long long* indices,
                                const Row* rows, long long row_stride, long long count,
                                long long columns) {
  __shared__ int found[kMostThreads];
  const long long row = blockIdx.x;
  if (!is_first(indices, row)) return;
  const long long index = indices[row];
  const long long column = (static_cast<long long>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const bool mine = column < columns;
  float sums[N] = {};
  for (long long begin = row; begin < count; begin += static_cast<long long>(blockDim.x)) {
    const int n = find(indices, begin, count, index, found);
    if (!mine) continue;
    const Row* const from = rows + begin * row_stride + column;
    for (int k = 0; k < n; k += kAtOnce) {
      Vector<Row, N> x[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (k + j < n) x[j] = load<N>(from + found[k + j] * row_stride);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (k + j >= n) break;
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += widen(x[j].at[i]);
      }
    }
  }
  if (!mine) return;
  Table* const to = table + index * table_stride + column;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = narrow<Table>(widen(to[i]) + sums[i]);
}

// Types of the table and of the rows.
#define NEAP_ADD_ROWS(name, Table, Row, N)                                                         \
  extern "C" __global__ void add_##name(Table* table, long long table_stride,                      \
                                        const long long* indices, const Row* rows,                 \
                                        long long row_stride, long long count, long long columns) { \
    add_rows<Table, Row, N>(table, table_stride, indices, rows, row_stride, count, columns);       \
  }
NEAP_ADD_ROWS(bf16_bf16_vector, Bf16, Bf16, 8)
NEAP_ADD_ROWS(bf16_bf16_single, Bf16, Bf16, 1)
NEAP_ADD_ROWS(f32_bf16_vector, float, Bf16, 8)
NEAP_ADD_ROWS(f32_bf16_single, float, Bf16, 1)
NEAP_ADD_ROWS(f32_f32_vector, float, float, 4)
NEAP_ADD_ROWS(f32_f32_single, float, float, 1)

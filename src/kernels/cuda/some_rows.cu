// Products of at most 64 rows with matrices (out, in) for decoding, by the products of Hopper's warp groups. A
// block has kRowsOfBlock rows of the matrices, and the blocks of a cluster divide the columns. Chunks of the
// matrices and of x pass through a ring in shared memory. Sums are added in a fixed order: within this kernel,
// the bits of a row do not depend on other rows. Reading matrices begins before the previous kernel has ended.

#include "activation.cuh"
#include "eight.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kStep = 16;  // columns of a product
// Vectors of a row of a chunk. They have 128 bytes, the period of the swizzle.
constexpr int kVectors = kColumnsOfChunk / kOfLane;
constexpr int kRowsAtOnce = kSomeRowsThreads / kVectors;  // that the block's threads copy
constexpr int kOfThread = kRowsOfBlock / kRowsAtOnce;  // rows of the matrices that a thread copies

/// Copies 8 numbers to shared memory, or zeros.
__device__ inline void copy_ahead(Bf16* to, const Bf16* from, bool inside) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ inline void end_of_chunk() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until all chunks but the last PENDING have arrived.
template <int PENDING>
__device__ inline void wait_for_chunk() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ inline int blocks_of_cluster() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return static_cast<int>(n);
}
__device__ inline int place_in_cluster() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
  return static_cast<int>(n);
}
/// Then every block of the cluster sees what each has written, and has read what it read.
__device__ inline void wait_for_cluster() {
  if (blocks_of_cluster() == 1) {
    __syncthreads();
    return;
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
/// From the shared memory of another block of the cluster, at the address that it has in this one.
__device__ inline float4 read_of_block(const float* from, int block) {
  float4 x;
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(from));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

/// Rows of a chunk in shared memory as an operand of a product.
__device__ inline unsigned long long operand(const Bf16* rows) {
  constexpr unsigned long long kEightRows = 8 * kColumnsOfChunk * sizeof(Bf16), kSwizzle = 1;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(rows));
  return (at >> 4 & 0x3fff) | 1ull << 16 | kEightRows >> 4 << 32 | kSwizzle << 62;
}
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until the products of all chunks but the last PENDING have been added.
template <int PENDING>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/// Lets products read what this thread's copies have written.
__device__ inline void show_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#define NEAP_FOUR(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
/// Products of 64 rows of the matrices with tiles of x, over kStep columns. `adds`: to the sums before.
__device__ inline void multiply(float (&sum)[1][4], unsigned long long w, unsigned long long x,
                                int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.s32 adds, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3}, "
      "%4, %5, adds, 1, 1, 0, 0;\n}"
      : NEAP_FOUR(0)
      : "l"(w), "l"(x), "r"(adds));
}
__device__ inline void multiply(float (&sum)[2][4], unsigned long long w, unsigned long long x,
                                int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.s32 adds, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "%8, %9, adds, 1, 1, 0, 0;\n}"
      : NEAP_FOUR(0), NEAP_FOUR(1)
      : "l"(w), "l"(x), "r"(adds));
}
__device__ inline void multiply(float (&sum)[4][4], unsigned long long w, unsigned long long x,
                                int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.s32 adds, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, adds, 1, 1, 0, 0;\n}"
      : NEAP_FOUR(0), NEAP_FOUR(1), NEAP_FOUR(2), NEAP_FOUR(3)
      : "l"(w), "l"(x), "r"(adds));
}
__device__ inline void multiply(float (&sum)[6][4], unsigned long long w, unsigned long long x,
                                int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.s32 adds, %26, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23}, "
      "%24, %25, adds, 1, 1, 0, 0;\n}"
      : NEAP_FOUR(0), NEAP_FOUR(1), NEAP_FOUR(2), NEAP_FOUR(3), NEAP_FOUR(4), NEAP_FOUR(5)
      : "l"(w), "l"(x), "r"(adds));
}
__device__ inline void multiply(float (&sum)[8][4], unsigned long long w, unsigned long long x,
                                int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.s32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, adds, 1, 1, 0, 0;\n}"
      : NEAP_FOUR(0), NEAP_FOUR(1), NEAP_FOUR(2), NEAP_FOUR(3), NEAP_FOUR(4), NEAP_FOUR(5),
        NEAP_FOUR(6), NEAP_FOUR(7)
      : "l"(w), "l"(x), "r"(adds));
}
#undef NEAP_FOUR

/// A row of one of the matrices; null behind the last.
struct Row {
  const Bf16* weight = nullptr;
  const Bf16* bias = nullptr;  ///< of this row and those behind
};
__device__ inline Row row_of(const Matrices<Bf16>& by, long long row, int columns) {
#pragma unroll
  for (int m = 0; m < kMostMatrices; ++m) {
    if (row < by.out[m])
      return {by.weight[m] + row * columns, by.bias[m] == nullptr ? nullptr : by.bias[m] + row};
    row -= by.out[m];
  }
  return {};
}

/// A block's columns of a product, in chunks.
template <int T>
struct alignas(1024) Chunk {  // vector v of row r is in place v ^ r % 8
  Bf16 w[kRowsOfBlock][kColumnsOfChunk];
  Bf16 x[T * kTile][kColumnsOfChunk];
};
static_assert(sizeof(Chunk<1>) == bytes_of_chunk(1) && sizeof(Chunk<8>) == bytes_of_chunk(8));

/// A block's sums, by row of x.
template <int T>
struct Sums {
  float at[T * kTile][kRowsOfBlock + 4];  // the rest keeps neighbouring rows in different banks
  /// The sums of four rows of the matrices for a row of x, over all blocks.
  __device__ float4 total(int row, int first) const {
    float4 sum = {};
    const int blocks = blocks_of_cluster();
    for (int block = 0; block < blocks; ++block) {
      const float4 part = read_of_block(&at[row][first], block);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    return sum;
  }
};

/// Adds the products of the block's columns. In a gated product, gate and up have 8 rows of the tile in turn.
template <int T, int RING>
__device__ inline void add_chunks(float (&sum)[T][4], Chunk<T> (&ring)[RING], const Bf16* x,
                                  const Matrices<Bf16>& by, long long stride, int rows, int columns,
                                  int gated) {
  static_assert(RING >= 3, "a chunk that is read, one behind it, and one that is copied");
  constexpr int kRows = T * kTile, kAhead = RING - 2;
  const int thread = static_cast<int>(threadIdx.x);
  const int steps = (columns + kColumnsOfChunk - 1) / kColumnsOfChunk;
  const int of_block = (steps + blocks_of_cluster() - 1) / blocks_of_cluster();
  const int begin = of_block * place_in_cluster();
  const int chunks = min(steps - begin, of_block);
  const int first_row = thread / kVectors, vector = thread % kVectors;
  const int place = (vector ^ first_row % 8) * kOfLane;
  const int first = begin * kColumnsOfChunk + vector * kOfLane;
  const long long tile = blockIdx.y;
  const Bf16* weight[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int r = first_row + i * kRowsAtOnce;
    const long long of_half = tile * (kRowsOfBlock / 2) + r / (2 * kTile) * kTile + r % kTile;
    const long long half = r / kTile % 2 * static_cast<long long>(by.out[0]);
    const Row row = row_of(by, gated ? half + of_half : tile * kRowsOfBlock + r, columns);
    if (row.bias != nullptr && vector == 0) fetch_ahead(row.bias);
    weight[i] = gated && of_half >= by.out[0] ? nullptr : row.weight;
  }
  const auto fetch_weights = [&](int chunk) {
    if (chunk >= chunks) return;
    const int column = first + chunk * kColumnsOfChunk;
    Chunk<T>& to = ring[chunk % RING];
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const bool there = column < columns && weight[i] != nullptr;
      copy_ahead(&to.w[first_row + i * kRowsAtOnce][place], there ? weight[i] + column : x, there);
    }
  };
  const Bf16* const row_of_x = x + first_row * stride;
  const auto fetch_x = [&](int chunk) {
    if (chunk < chunks) {
      const int column = first + chunk * kColumnsOfChunk;
      Chunk<T>& to = ring[chunk % RING];
#pragma unroll
      for (int r = 0; r < kRows; r += kRowsAtOnce) {
        if (kRows % kRowsAtOnce != 0 && first_row + r >= kRows) break;
        const bool there = column < columns && first_row + r < rows;
        copy_ahead(&to.x[first_row + r][place], there ? row_of_x + r * stride + column : x, there);
      }
    }
    end_of_chunk();
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch_weights(i);
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch_x(i);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_chunk<kAhead - 1>();
    show_copies();
    __syncthreads();
    // The products of the chunk before the last have been waited for.
    fetch_weights(chunk + kAhead);
    fetch_x(chunk + kAhead);
    Chunk<T>& from = ring[chunk % RING];
    const unsigned long long w = operand(from.w[0]), v = operand(from.x[0]);
    begin_products();
#pragma unroll
    for (int s = 0; s < kColumnsOfChunk / kStep; ++s) {
      constexpr int kUnits = kStep * sizeof(Bf16) / 16;  // of an operand's address
      multiply(sum, w + s * kUnits, v + s * kUnits, chunk > 0 || s > 0);
    }
    end_products();
    wait_for_products<1>();
  }
  wait_for_products<0>();
  if (chunks > 0) return;
#pragma unroll
  for (int t = 0; t < T; ++t)
    for (float& s : sum[t]) s = 0;
}

constexpr int kFour = 4;  // neighbours of a row of y that a thread has
/// A block's share of its tile of y.
struct Share {
  int outs;       // rows of the tile's matrices
  long long all;  // columns of y
  int begin, end;
  __device__ Share(const Matrices<Bf16>& by, int rows, int gated)
      : outs(gated ? kRowsOfBlock / 2 : kRowsOfBlock),
        all(gated ? by.out[0] : by.columns()) {
    const int fours = rows * outs / kFour;
    const int mine = (fours + blocks_of_cluster() - 1) / blocks_of_cluster();
    begin = mine * place_in_cluster() + static_cast<int>(threadIdx.x);
    end = min(fours, mine * place_in_cluster() + mine);
  }
  __device__ int row(int i) const { return i / (outs / kFour); }
  __device__ int at(int i) const { return i % (outs / kFour) * kFour; }
  __device__ long long column(int i) const {
    return static_cast<long long>(blockIdx.y) * outs + at(i);
  }
  __device__ Bf16* place(Bf16* y, int i) const { return y + row(i) * all + column(i); }
};

/// y (rows, all out) = act(sums + bias), or += where `adds`; where `gated`, y (rows, out) = act(gate's sums) (up's sums). Intermediate
/// results are rounded as in gated.cu. `first` are y's numbers where the thread adds first.
template <int T>
__device__ inline void write_rows(Bf16* y, const Sums<T>& sums, const Matrices<Bf16>& by,
                                  const Share& share, const Vector<Bf16, kFour>& first,
                                  int columns, int activation, int adds, int gated) {
  for (int i = share.begin; i < share.end; i += kSomeRowsThreads) {
    const int row = share.row(i), at = share.at(i);
    const long long column = share.column(i);
    if (column >= share.all) continue;
    Bf16* const place = share.place(y, i);
    Vector<Bf16, kFour> out;
    if (gated) {
      const int half = at / kTile * 2 * kTile + at % kTile;
      const float4 of_gate = sums.total(row, half);
      const float4 of_up = sums.total(row, half + kTile);
      const float gate[kFour] = {of_gate.x, of_gate.y, of_gate.z, of_gate.w};
      const float up[kFour] = {of_up.x, of_up.y, of_up.z, of_up.w};
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        const float a = widen(narrow<Bf16>(activated(activation, widen(narrow<Bf16>(gate[k])))));
        out.at[k] = narrow<Bf16>(a * widen(narrow<Bf16>(up[k])));
      }
    } else {
      const float4 sum = sums.total(row, at);
      float four[kFour] = {sum.x, sum.y, sum.z, sum.w};
      const Bf16* const bias = row_of(by, column, columns).bias;
      Vector<Bf16, kFour> before = first;
      if (adds && i != share.begin) before = load<kFour>(place);
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        if (bias != nullptr) four[k] += widen(bias[k]);
        if (adds) four[k] += widen(before.at[k]);
        if (activation != kNoActivation)
          four[k] = activated(activation, widen(narrow<Bf16>(four[k])));
        out.at[k] = narrow<Bf16>(four[k]);
      }
    }
    store(place, out);
  }
}

/// blockIdx.x is the block's place in its cluster, blockIdx.y its tile of the matrices. T tiles of x, and B blocks of a multiprocessor.
template <int T, int B>
__device__ inline void some_rows(Bf16* y, const Bf16* x, const Matrices<Bf16>& by, long long stride,
                                 int rows, int columns, int activation, int adds, int gated) {
  using Ring = Chunk<T>[ring_of(T, B)];
  extern __shared__ __align__(1024) unsigned char shared[];
  let_next_start();
  float sum[T][4];
  add_chunks<T>(sum, reinterpret_cast<Ring&>(shared), x, by, stride, rows, columns, gated);
  __syncthreads();  // the ring has been read
  Sums<T>& sums = *reinterpret_cast<Sums<T>*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kWarp * 2 * kTile + thread % kWarp / 4;
#pragma unroll
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums.at[t * kTile + thread % 4 * 2 + i % 2][row + i / 2 * kTile] = sum[t][i];
  }
  const Share share(by, rows, gated);
  Vector<Bf16, kFour> first = {};  // arrives while blocks wait
  if (adds && share.begin < share.end && share.column(share.begin) < share.all)
    first = load<kFour>(share.place(y, share.begin));
  wait_for_cluster();
  write_rows<T>(y, sums, by, share, first, columns, activation, adds, gated);
  if (blocks_of_cluster() > 1) wait_for_cluster();  // others have read the sums
}

#define NEAP_SOME_ROWS(T, B)                                                                     \
  extern "C" __global__ void __launch_bounds__(kSomeRowsThreads, B)                              \
      some_rows_##T##_##B(Bf16* y, const Bf16* x, Matrices<Bf16> by, long long stride, int rows, \
                          int columns, int activation, int adds, int gated) {                    \
    some_rows<T, B>(y, x, by, stride, rows, columns, activation, adds, gated);                   \
  }
NEAP_SOME_ROWS(1, 2)
NEAP_SOME_ROWS(1, 3)
NEAP_SOME_ROWS(2, 2)
NEAP_SOME_ROWS(2, 3)
NEAP_SOME_ROWS(4, 2)
NEAP_SOME_ROWS(4, 3)
NEAP_SOME_ROWS(6, 2)
NEAP_SOME_ROWS(6, 3)
NEAP_SOME_ROWS(8, 2)
NEAP_SOME_ROWS(8, 3)

#endif

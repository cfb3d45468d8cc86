// A product of at most 64 rows with a matrix (out, in), whose depth is not divided: the bits of cuBLASLt's products of many rows. A block
// has 16 rows of the matrix. Its warps have eight rows of x each. Chunks of both pass through a ring in shared memory.
typedef unsigned short Half;

constexpr int kOut = 16, kDepth = 256, kThreads = 256, kPitch = kDepth + 8;  // columns of a chunk, and with a gap against bank conflicts

__device__ inline unsigned at_shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ inline void copy_chunk(Half* to, const Half* from, int rows, int all, int in, int first) {
  constexpr int kVectors = kDepth / 8;
  for (int i = threadIdx.x; i < all * kVectors; i += kThreads) {
    const int row = i / kVectors, column = i % kVectors * 8;
    const bool inside = row < rows && first + column < in;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at_shared(to + row * kPitch + column)),
                 "l"(from + static_cast<long long>(inside ? row : 0) * in + (inside ? first + column : 0)), "r"(inside ? 16 : 0) : "memory");
  }
}

constexpr int kPart = 64;  // columns

struct Part {
  unsigned a[kPart / 16][4], b[kPart / 16][2];
  __device__ inline void load(unsigned a_at, unsigned b_at) {
#pragma unroll
    for (int i = 0; i < kPart / 16; ++i)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3]) : "r"(a_at + 32 * i));
#pragma unroll
    for (int i = 0; i < kPart / 16; i += 2)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(b[i][0]), "=r"(b[i][1]), "=r"(b[i + 1][0]), "=r"(b[i + 1][1]) : "r"(b_at + 32 * i));
  }
  __device__ inline void add(float* d) {
#pragma unroll
    for (int i = 0; i < kPart / 16; ++i)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[i][0]), "r"(b[i][1]));
  }
};

// TILES: of eight rows of x. STAGES: chunks in shared memory.
template <int TILES, int STAGES>
__device__ inline void product(Half* y, const Half* x, const Half* w, int rows, int in, int out) {
  extern __shared__ Half ring[];
  constexpr int kStage = (kOut + 8 * TILES) * kPitch;
  const int first = blockIdx.x * kOut, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (in + kDepth - 1) / kDepth;
  const auto bring = [&](int chunk) {
    Half* stage = ring + chunk % STAGES * kStage;
    if (chunk < chunks) {
      copy_chunk(stage, w + static_cast<long long>(first) * in, out - first, kOut, in, chunk * kDepth);
      copy_chunk(stage + kOut * kPitch, x, rows, 8 * TILES, in, chunk * kDepth);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int i = 0; i < STAGES - 1; ++i) bring(i);
  float d[4] = {0, 0, 0, 0};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    bring(chunk + STAGES - 1);
    if (warp < TILES) {
      const Half* stage = ring + chunk % STAGES * kStage;
      const unsigned a_at = at_shared(stage + lane % 16 * kPitch + lane / 16 * 8);
      const unsigned b_at = at_shared(stage + (kOut + 8 * warp + lane % 8) * kPitch + lane / 8 * 8);  // four of eight columns
      // A part is loaded before the sums of the part before it are computed.
      Part parts[2];
      parts[0].load(a_at, b_at);
#pragma unroll
      for (int i = 0; i < kDepth / kPart; ++i) {
        if (i + 1 < kDepth / kPart) parts[(i + 1) % 2].load(a_at + 2 * kPart * (i + 1), b_at + 2 * kPart * (i + 1));
        parts[i % 2].add(d);
      }
    }
  }
  if (warp >= TILES) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = first + lane / 4 + i / 2 * 8, row = 8 * warp + lane % 4 * 2 + i % 2;
    if (row >= rows || column >= out) continue;
    Half h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(d[i]));
    y[static_cast<long long>(row) * out + column] = h;
  }
}

#define KERNEL(TILES, STAGES)                                                                                                                          \
  extern "C" __global__ __launch_bounds__(kThreads) void exact_rows_##TILES##_##STAGES(Half* y, const Half* x, const Half* w, int rows, int in, int out) { \
    product<TILES, STAGES>(y, x, w, rows, in, out);                                                                                                   \
  }
KERNEL(1, 4)
KERNEL(1, 8)
KERNEL(1, 12)
KERNEL(4, 4)
KERNEL(4, 8)
KERNEL(8, 3)
KERNEL(8, 5)

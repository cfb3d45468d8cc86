// bf16 rows to fp8 with one scale, a power of two, so that only the conversion rounds. The first kernel
// finds the largest absolute value, the second converts, in the rows' order, transposed, or both.
#include "kernels/fp8_sizes.h"

using namespace neap::kernels::fp8;

constexpr unsigned kFirstOfPair = 0x7fff, kSecondOfPair = 0x7fff0000;  // absolute values
constexpr int kWarp = 32;

/// Absolute values of bf16 compare as their bits. An infinity is above every number, and a NaN above it.
__device__ inline unsigned largest_of(unsigned pair, unsigned most) {
  most = max(most, pair & kFirstOfPair);
  return max(most, (pair & kSecondOfPair) >> 16);
}

/// The largest of a block's threads, in all of them.
__device__ inline unsigned largest_of_block(unsigned most) {
  __shared__ unsigned of_warp[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2)
    most = max(most, __shfl_xor_sync(0xffffffff, most, step));
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) most = max(most, of_warp[i]);
  return most;
}

/// Writes the bits of the largest value that each block finds. Columns are whole vectors.
extern "C" __global__ void largest(unsigned* to, const Bf16* x, long long stride, long long rows,
                                   long long columns) {
  constexpr int kAtOnce = 4;
  const long long of_row = columns / kOfThread, count = rows * of_row;
  const long long step = static_cast<long long>(gridDim.x) * kThreads;
  const auto vector = [&](long long i) {
    if (i >= count) return uint4{0, 0, 0, 0};
    const long long row = rows == 1 ? 0 : i / of_row;
    return *reinterpret_cast<const uint4*>(x + row * stride + (i - row * of_row) * kOfThread);
  };
  unsigned most = 0;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += kAtOnce * step) {
    uint4 read[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) read[j] = vector(i + j * step);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      most = largest_of(read[j].x,
                        largest_of(read[j].y, largest_of(read[j].z, largest_of(read[j].w, most))));
  }
  most = largest_of_block(most);
  if (threadIdx.x == 0) to[blockIdx.x] = most;
}

/// The power of two by which values are multiplied: the largest one that keeps them in the format's
/// range, 1.75 times two to the `top`. NaN if a value is not finite.
__device__ inline float multiplier_of(unsigned largest, int top) {
  constexpr unsigned kMantissa = 0x7f, kMostMantissa = 0x60, kNoNumber = 255;
  constexpr int kBias = 127, kMost = 126;
  if (largest == 0) return 1.0f;
  const unsigned exponent = largest >> 7;
  if (exponent == kNoNumber) return __uint_as_float(0x7fc00000);
  const int down = (largest & kMantissa) > kMostMantissa ? 1 : 0;
  const int by = min(top - (static_cast<int>(exponent) - kBias) - down, kMost);
  return __uint_as_float(static_cast<unsigned>(kBias + by) << 23);
}

/// Two numbers; the first in the lower byte.
template <int Top>
__device__ inline unsigned two_of(float first, float second) {
  unsigned short pair = 0;
#if __CUDA_ARCH__ >= 890
  if (Top == 8) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  }
#endif
  return pair;
}
template <int Top>
__device__ inline unsigned four_of(unsigned low, unsigned high, float by) {
  const auto first = [&](unsigned pair) { return __uint_as_float(pair << 16) * by; };
  const auto second = [&](unsigned pair) { return __uint_as_float(pair & 0xffff0000) * by; };
  return two_of<Top>(first(low), second(low)) | two_of<Top>(first(high), second(high)) << 16;
}

/// Transposes bytes: four rows of four.
__device__ inline void transpose(unsigned (&to)[4], const unsigned (&from)[4]) {
  const unsigned a = __byte_perm(from[0], from[1], 0x5140);
  const unsigned b = __byte_perm(from[2], from[3], 0x5140);
  const unsigned c = __byte_perm(from[0], from[1], 0x7362);
  const unsigned d = __byte_perm(from[2], from[3], 0x7362);
  to[0] = __byte_perm(a, b, 0x5410);
  to[1] = __byte_perm(a, b, 0x7632);
  to[2] = __byte_perm(c, d, 0x5410);
  to[3] = __byte_perm(c, d, 0x7632);
}

struct Fp8Copies {
  unsigned char* rows;     // (rows, columns); null: not wanted
  unsigned char* columns;  // (columns, padded), with zeros behind the last row
  float* scale;            // what a value of 1 stands for
  const unsigned* found;   // by the kernel above, `blocks` of them; null: `scale` is known
  int blocks;
};

/// A thread converts eight rows of eight elements. Neighbouring lanes have 32 columns, then 64 rows.
template <int Top>
__device__ inline void convert(const Fp8Copies& to, const Bf16* x, long long stride, long long rows,
                               long long columns, long long padded) {
  constexpr int kN = kOfThread, kAcross = 4, kDown = kWarp / kAcross;  // of a warp
  constexpr int kWarpsAcross = kTile / (kAcross * kN);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const long long column = static_cast<long long>(blockIdx.x) * kTile +
                           ((warp % kWarpsAcross) * kAcross + lane % kAcross) * kN;
  const long long row = static_cast<long long>(blockIdx.y) * kTile +
                        ((warp / kWarpsAcross) * kDown + lane / kAcross) * kN;
  uint4 read[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i)
    read[i] = column < columns && row + i < rows
                  ? *reinterpret_cast<const uint4*>(x + (row + i) * stride + column)
                  : uint4{0, 0, 0, 0};
  float by = 0;
  if (to.found != nullptr) {
    unsigned most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < to.blocks; i += kThreads)
      most = max(most, to.found[i]);
    by = multiplier_of(largest_of_block(most), Top);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *to.scale = 1.0f / by;
  } else {
    by = 1.0f / *to.scale;
  }
  if (column >= columns || row >= padded) return;
  unsigned low[kN], high[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    low[i] = four_of<Top>(read[i].x, read[i].y, by);
    high[i] = four_of<Top>(read[i].z, read[i].w, by);
    if (to.rows != nullptr && row + i < rows)
      *reinterpret_cast<uint2*>(to.rows + (row + i) * columns + column) = uint2{low[i], high[i]};
  }
  if (to.columns == nullptr) return;
  const auto write = [&](const unsigned(&from)[kN], long long first) {
    unsigned upper[4], lower[4];
    transpose(upper, {from[0], from[1], from[2], from[3]});
    transpose(lower, {from[4], from[5], from[6], from[7]});
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint2*>(to.columns + (first + i) * padded + row) =
          uint2{upper[i], lower[i]};
  };
  write(low, column);
  write(high, column + 4);
}

extern "C" __global__ void convert_e4m3(Fp8Copies to, const Bf16* x, long long stride,
                                        long long rows, long long columns, long long padded) {
  convert<8>(to, x, stride, rows, columns, padded);
}
extern "C" __global__ void convert_e5m2(Fp8Copies to, const Bf16* x, long long stride,
                                        long long rows, long long columns, long long padded) {
  convert<15>(to, x, stride, rows, columns, padded);
}

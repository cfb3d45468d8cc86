// Second products of LoRA in decoding, with what follows them. Rows y have the results of up to three
// matrices side by side, and behind these the products with the adapters' first matrices. A thread
// computes a column of at most kTile rows. Sums have a fixed order, so a row's result does not depend on
// other rows. Reading of matrices begins before the previous kernel has ended.

#include "activation.cuh"
#include "eight.cuh"

/// The adapter of a column.
struct Place {
  const Bf16* up = nullptr;
  int rank = 0;
  int first = 0;  ///< of its products, behind those of earlier adapters
  float scale = 0;
};
__device__ inline Place place_of(const Adapters<Bf16>& by, long long column) {
  Place place;
  int first = 0;
  bool found = false;
#pragma unroll
  for (int m = 0; m < kMostAdapters; ++m) {
    if (!found && column < by.out[m]) {
      place = {by.up[m] + column * by.rank[m], by.rank[m], first, by.scale[m]};
      found = true;
    }
    column -= by.out[m];
    first += by.rank[m];
  }
  return place;
}

__device__ inline float low(unsigned pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/// A row of a second matrix.
template <int CHUNKS>
struct Up {
  Place place;
  Eight of[CHUNKS];

  __device__ void read(const Adapters<Bf16>& by, long long column) {
    place = place_of(by, column);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      of[c] = read_once(place.up + c * kOfLane, c * kOfLane < place.rank);
  }
  /// The number that it adds to a row of y.
  __device__ float times(const Bf16* downs) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      if (c * kOfLane >= place.rank) break;
      const Eight down = *reinterpret_cast<const Eight*>(downs + place.first + c * kOfLane);
#pragma unroll
      for (int i = 0; i < kOfLane / 2; ++i) {
        sum += low(down.pairs[i]) * low(of[c].pairs[i]);
        sum += high(down.pairs[i]) * high(of[c].pairs[i]);
      }
    }
    return place.scale * sum;
  }
};

/// out (rows, all out) = y + adapters; += if `adds`. If `gated`, the first two matrices' sums give
/// out (rows, out) = act(gate) up, rounded as in gated.cu. out may be y. blockIdx.y counts kTile rows.
template <int CHUNKS>
__device__ inline void add_adapters(Bf16* out, long long out_stride, const Bf16* y,
                                    long long y_stride, const Adapters<Bf16>& by, int rows,
                                    int activation, int adds, int gated) {
  __shared__ alignas(16) Bf16 downs[kTile][kMostAdapters * kMostRank];
  let_next_start();
  int all = 0, vectors = 0;
#pragma unroll
  for (int m = 0; m < kMostAdapters; ++m) {
    all += by.out[m];
    vectors += by.rank[m] / kOfLane;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.x) * kAdapterThreads + thread;
  const bool inside = column < (gated ? by.out[0] : all);
  Up<CHUNKS> first, second;
  if (inside) first.read(by, column);
  if (inside && gated) second.read(by, static_cast<long long>(column) + by.out[0]);
  wait_for_previous();
  const int begin = static_cast<int>(blockIdx.y) * kTile;
  const int count = min(kTile, rows - begin);
  y += begin * y_stride;
  out += begin * out_stride + column;
  for (int i = thread; i < count * vectors; i += kAdapterThreads) {
    const int row = i / vectors, at = i % vectors * kOfLane;
    *reinterpret_cast<Eight*>(&downs[row][at]) =
        *reinterpret_cast<const Eight*>(y + row * y_stride + all + at);
  }
  __syncthreads();
  if (!inside) return;
  for (int row = 0; row < count; ++row) {
    const Bf16* const from = y + row * y_stride + column;
    Bf16* const to = out + row * out_stride;
    float sum = widen(*from) + first.times(downs[row]);
    if (gated) {
      const float up = widen(from[by.out[0]]) + second.times(downs[row]);
      const float a = widen(narrow<Bf16>(activated(activation, widen(narrow<Bf16>(sum)))));
      sum = a * widen(narrow<Bf16>(up));
    } else if (adds) {
      sum += widen(*to);
    }
    *to = narrow<Bf16>(sum);
  }
}

#define NEAP_ADAPTERS(CHUNKS)                                                               \
  extern "C" __global__ void __launch_bounds__(kAdapterThreads)                             \
      adapters_##CHUNKS(Bf16* out, long long out_stride, const Bf16* y, long long y_stride, \
                        Adapters<Bf16> by, int rows, int activation, int adds, int gated) { \
    add_adapters<CHUNKS>(out, out_stride, y, y_stride, by, rows, activation, adds, gated);  \
  }
NEAP_ADAPTERS(1)
NEAP_ADAPTERS(2)
NEAP_ADAPTERS(4)
NEAP_ADAPTERS(8)
NEAP_ADAPTERS(16)

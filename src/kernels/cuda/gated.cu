// act(gate) * up, forward and backward. Intermediate results are rounded to the elements' type, as
// by libtorch's operations. So keeping and recomputing act(gate) give bitwise equal results. A
// thread computes N adjacent elements of a row: blockIdx.x along the row, blockIdx.y over rows.

#include "activation.cuh"

__device__ inline float slope_of_gelu_tanh(float x) {
  const float inner = tanhf(kTanhBeta * (x + kTanhKappa * x * x * x));
  const float inner_slope = (1.0f - inner * inner) * kTanhBeta * (1.0f + 3.0f * kTanhKappa * x * x);
  return 0.5f * (1.0f + inner) + 0.5f * x * inner_slope;
}

/// dy times the derivative at x.
__device__ inline float activation_backward(int kind, float dy, float x) {
  switch (kind) {
    case kSilu: {
      const float s = 1.0f / (1.0f + expf(-x));
      return dy * s * (1.0f + x * (1.0f - s));
    }
    case kGelu: {
      const float cdf = 0.5f * (1.0f + erff(x * kSqrtHalf));
      const float pdf = expf(-0.5f * x * x) * (kTwoOverSqrtPi * kSqrtHalf * 0.5f);
      return dy * (cdf + x * pdf);
    }
    case kGeluTanh:
      return dy * slope_of_gelu_tanh(x);
    default:
      return x <= 0.0f ? 0.0f : dy;
  }
}

template <class T, int N>
__device__ inline void product(T* out, long long out_stride, const T* gate, long long gate_stride,
                               const T* up, long long up_stride, long long rows, long long columns,
                               int kind) {
  const long long column = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (column >= columns) return;
  for (long long row = blockIdx.y; row < rows; row += gridDim.y) {
    const Vector<T, N> g = load<N>(gate + row * gate_stride + column);
    const Vector<T, N> u = load<N>(up + row * up_stride + column);
    Vector<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float a = widen(narrow<T>(activated(kind, widen(g.at[i]))));
      y.at[i] = narrow<T>(a * widen(u.at[i]));
    }
    store(out + row * out_stride + column, y);
  }
}

/// d_gate and d_up from d, the product's gradient. d_gate may alias d.
template <class T, int N>
__device__ inline void backward(T* d_gate, long long d_gate_stride, T* d_up, long long d_up_stride,
                                const T* d, long long d_stride, const T* gate,
                                long long gate_stride, const T* up, long long up_stride,
                                long long rows, long long columns, int kind) {
  const long long column = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (column >= columns) return;
  for (long long row = blockIdx.y; row < rows; row += gridDim.y) {
    const Vector<T, N> dy = load<N>(d + row * d_stride + column);
    const Vector<T, N> g = load<N>(gate + row * gate_stride + column);
    const Vector<T, N> u = load<N>(up + row * up_stride + column);
    Vector<T, N> of_gate, of_up;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = widen(g.at[i]);
      const float by = widen(dy.at[i]);
      const float a = widen(narrow<T>(activated(kind, x)));
      of_up.at[i] = narrow<T>(by * a);
      const float of_activated = widen(narrow<T>(by * widen(u.at[i])));
      of_gate.at[i] = narrow<T>(activation_backward(kind, of_activated, x));
    }
    store(d_up + row * d_up_stride + column, of_up);
    store(d_gate + row * d_gate_stride + column, of_gate);
  }
}

#define NEAP_GATED(name, T, N)                                                                     \
  extern "C" __global__ void product_##name(T* out, long long out_stride, const T* gate,           \
                                            long long gate_stride, const T* up,                    \
                                            long long up_stride, long long rows,                   \
                                            long long columns, int kind) {                         \
    product<T, N>(out, out_stride, gate, gate_stride, up, up_stride, rows, columns, kind);         \
  }                                                                                                \
  extern "C" __global__ void backward_##name(                                                      \
      T* d_gate, long long d_gate_stride, T* d_up, long long d_up_stride, const T* d,              \
      long long d_stride, const T* gate, long long gate_stride, const T* up, long long up_stride,  \
      long long rows, long long columns, int kind) {                                               \
    backward<T, N>(d_gate, d_gate_stride, d_up, d_up_stride, d, d_stride, gate, gate_stride, up,   \
                   up_stride, rows, columns, kind);                                                \
  }
NEAP_KERNELS_OF_TYPES(NEAP_GATED)

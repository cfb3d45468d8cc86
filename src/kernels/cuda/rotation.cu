// Rotation of heads: [x1 cos - x2 sin, x2 cos + x1 sin, rest], in float32, rounded once. A thread
// rotates N adjacent elements of a half with their partners, or copies N elements of the rest.

/// x (rows, heads, width) with strides, y contiguous; cos and sin (positions, half). `sign` -1: back.
template <class T, int N>
__device__ inline void turn(T* y, const T* x, long long row_stride, long long head_stride,
                            const T* cos, const T* sin, long long rows, long long heads,
                            long long width, long long half, long long positions, float sign) {
  const long long turned = half / N;
  const long long parts = turned + (width - 2 * half) / N;
  const long long part = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (part >= heads * parts) return;
  const long long head = part / parts;
  const long long place = part % parts;
  for (long long row = blockIdx.y; row < rows; row += gridDim.y) {
    const T* const from = x + row * row_stride + head * head_stride;
    T* const to = y + (row * heads + head) * width;
    if (place >= turned) {
      const long long at = 2 * half + (place - turned) * N;
      store(to + at, load<N>(from + at));
      continue;
    }
    const long long at = place * N;
    const long long angle = (row % positions) * half + at;
    const Vector<T, N> x1 = load<N>(from + at);
    const Vector<T, N> x2 = load<N>(from + half + at);
    const Vector<T, N> c = load<N>(cos + angle);
    const Vector<T, N> s = load<N>(sin + angle);
    Vector<T, N> y1, y2;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float a = widen(x1.at[i]);
      const float b = widen(x2.at[i]);
      const float cosine = widen(c.at[i]);
      const float sine = sign * widen(s.at[i]);
      y1.at[i] = narrow<T>(a * cosine - b * sine);
      y2.at[i] = narrow<T>(b * cosine + a * sine);
    }
    store(to + at, y1);
    store(to + half + at, y2);
  }
}

#define NEAP_ROTATION(name, T, N)                                                                 \
  extern "C" __global__ void turn_##name(T* y, const T* x, long long row_stride,                  \
                                         long long head_stride, const T* cos, const T* sin,       \
                                         long long rows, long long heads, long long width,        \
                                         long long half, long long positions, float sign) {       \
    turn<T, N>(y, x, row_stride, head_stride, cos, sin, rows, heads, width, half, positions,      \
               sign);                                                                             \
  }
NEAP_KERNELS_OF_TYPES(NEAP_ROTATION)

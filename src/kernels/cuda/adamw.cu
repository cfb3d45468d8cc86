// One step of AdamW: scales the gradient, updates in float32, and writes the weights' bfloat16
// copy. A thread updates N adjacent elements.

struct AdamW {
  float scale;          // of the gradient
  float keep;           // 1 - lr * weight decay
  float beta1, rest1;   // rest1: 1 - beta1
  float beta2, rest2;
  float step_size;      // lr / (1 - beta1^step)
  float root;           // sqrt(1 - beta2^step)
  float eps;
};

/// copy null: there is none.
template <class G, int N>
__device__ inline void update(float* x, float* average, float* square, const G* gradient, Bf16* copy,
                              long long count, AdamW by) {
  const long long at = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= count) return;
  Vector<float, N> p = load<N>(x + at);
  Vector<float, N> m = load<N>(average + at);
  Vector<float, N> v = load<N>(square + at);
  const Vector<G, N> d = load<N>(gradient + at);
  Vector<Bf16, N> rounded;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = widen(d.at[i]) * by.scale;
    m.at[i] = by.beta1 * m.at[i] + by.rest1 * g;
    v.at[i] = by.beta2 * v.at[i] + by.rest2 * g * g;
    const float slope = sqrtf(v.at[i]) / by.root + by.eps;
    p.at[i] = p.at[i] * by.keep - by.step_size * m.at[i] / slope;
    rounded.at[i] = narrow<Bf16>(p.at[i]);
  }
  store(x + at, p);
  store(average + at, m);
  store(square + at, v);
  if (copy != nullptr) store(copy + at, rounded);
}

// The type is the gradient's.
#define NEAP_ADAMW(name, G, N)                                                                      \
  extern "C" __global__ void update_##name(float* x, float* average, float* square, const G* gradient, \
                                           Bf16* copy, long long count, AdamW by) {                 \
    update<G, N>(x, average, square, gradient, copy, count, by);                                    \
  }
NEAP_ADAMW(bf16_vector, Bf16, 4)
NEAP_ADAMW(bf16_single, Bf16, 1)
NEAP_ADAMW(f32_vector, float, 4)
NEAP_ADAMW(f32_single, float, 1)

// Element types of tensors, and vectors of them. This file is prepended to each kernel's source, so
// NVRTC reads no headers.

struct Bf16 {
  unsigned short bits;
};

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(Bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 narrow<Bf16>(float x) {
  Bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

/// N elements that are read and written at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};
template <int N, class T>
__device__ inline Vector<T, N> load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <int N, class T>
__device__ inline void store(T* to, const Vector<T, N>& x) {
  *reinterpret_cast<Vector<T, N>*>(to) = x;
}

/// Waits until the previous kernels have ended, if the launch lets this one start early (Grid::early).
/// Until then several of them may run, so a kernel reads only what no kernel of a decoding step writes:
/// the model's parameters and constants. Every block waits before it writes or ends: once the previous
/// kernel has ended, so have those before it.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start as soon as there is room.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Prefetches to the L2 cache what the previous kernel does not write.
__device__ inline void fetch_ahead(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/// Transformation of a logit.
struct Shaping {
  float cap;      // 0: none
  float divisor;  // of temperature and model
};
__device__ inline float capped(float logit, const Shaping& by) {
  return by.cap > 0.0f ? by.cap * tanhf(logit / by.cap) : logit;
}
__device__ inline float shaped(float logit, const Shaping& by) {
  return capped(logit, by) / by.divisor;
}

/// The names that the program asks for: of each type with vectors of 16 bytes, and with single elements.
#define NEAP_KERNELS_OF_TYPES(X) \
  X(bf16_vector, Bf16, 8)        \
  X(bf16_single, Bf16, 1)        \
  X(f32_vector, float, 4)        \
  X(f32_single, float, 1)

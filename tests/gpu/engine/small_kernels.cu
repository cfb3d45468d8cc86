// Microseconds of a small kernel in a CUDA graph, with and without programmatic dependent launch, alone and between matrix products.
// Build: nvcc -std=c++20 -O3 -arch=sm_90 -o small_kernels small_kernels.cu -lcublasLt. Prints JSON lines.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                       \
  do {                                                                    \
    const auto code = (call);                                             \
    if (code != 0) {                                                      \
      std::fprintf(stderr, "%s: error %d\n", #call, static_cast<int>(code)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (false)

// y = x / rms(x), a block a row of `width` elements.
__global__ void norm(const __nv_bfloat16* x, __nv_bfloat16* y, int width, bool dependent) {
  if (dependent) asm volatile("griddepcontrol.wait;" ::: "memory");
  __shared__ float sums[32];
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float v = __bfloat162float(x[blockIdx.x * width + i]);
    sum += v * v;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += sums[w];
  const float scale = rsqrtf(sum / static_cast<float>(width) + 1e-6f);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[blockIdx.x * width + i] = __float2bfloat16(__bfloat162float(x[blockIdx.x * width + i]) * scale);
  if (dependent) asm volatile("griddepcontrol.launch_dependents;");
}

struct Product {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t description;
  cublasLtMatrixLayout_t w, x, y;
  cublasLtMatmulAlgo_t algorithm;
  void* workspace;

  Product(int rows, int inputs, int outputs) {
    CHECK(cublasLtCreate(&handle));
    CHECK(cudaMalloc(&workspace, 32 << 20));
    CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CHECK(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    CHECK(cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, inputs, outputs, inputs));
    CHECK(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, inputs, rows, inputs));
    CHECK(cublasLtMatrixLayoutCreate(&y, CUDA_R_16BF, outputs, rows, outputs));
    cublasLtMatmulPreference_t preference;
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none));
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, description, w, x, y, y, preference, 1, &found, &count));
    algorithm = found.algo;
  }
  void run(const void* weights, const void* in, void* out, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    CHECK(cublasLtMatmul(handle, description, &one, weights, w, in, x, &zero, out, y, out, y, &algorithm, workspace, 0, stream));
  }
};

static void launch(const __nv_bfloat16* x, __nv_bfloat16* y, int rows, int width, bool dependent, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(rows);
  config.blockDim = dim3(256);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  CHECK(cudaLaunchKernelEx(&config, norm, x, y, width, dependent));
}

template <class Body>
static double microseconds(cudaStream_t stream, int count, const Body& body) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; ++i) body(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<float> times;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 12; ++i) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 1) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  return times[times.size() / 2] * 1e3 / count;
}

int main() {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("{\"environment\": {\"gpu\": \"%s\", \"cublasLt\": %zu}}\n", properties.name, cublasLtGetVersion());
  const int shapes[][2] = {{896, 4864}, {1536, 8960}, {4096, 14336}};
  for (const int rows : {8, 64})
    for (const auto& [width, inner] : shapes) {
      __nv_bfloat16 *a, *b, *wide, *weights;
      const size_t size = static_cast<size_t>(width) * inner;
      const int copies = static_cast<int>(200000000 / (2 * size)) + 2;
      CHECK(cudaMalloc(&a, 2 * rows * width));
      CHECK(cudaMalloc(&b, 2 * rows * width));
      CHECK(cudaMalloc(&wide, 2 * rows * inner));
      CHECK(cudaMalloc(&weights, 2 * size * copies));
      CHECK(cudaMemset(a, 1, 2 * rows * width));
      CHECK(cudaMemset(weights, 1, 2 * size * copies));
      const Product up(rows, width, inner);
      const int count = 4 * copies < 200 ? 200 : 4 * copies;
      const auto alone = [&](bool dependent) {
        return microseconds(stream, count, [&](int i) { launch(i % 2 ? b : a, i % 2 ? a : b, rows, width, dependent, stream); });
      };
      const auto product = microseconds(stream, count, [&](int i) { up.run(weights + i % copies * size, a, wide, stream); });
      const auto between = [&](bool dependent) {
        return microseconds(stream, count, [&](int i) {
          launch(a, b, rows, width, dependent, stream);
          up.run(weights + i % copies * size, b, wide, stream);
        });
      };
      const double plain = alone(false), early = alone(true), pair = between(false), early_pair = between(true);
      std::printf("{\"rows\": %d, \"width\": %d, \"inner\": %d, \"norm_us\": %.2f, \"norm_dependent_us\": %.2f, \"product_us\": %.2f, "
                  "\"norm_and_product_us\": %.2f, \"norm_dependent_and_product_us\": %.2f, \"product_bytes_a_second\": %.3g}\n",
                  rows, width, inner, plain, early, product, pair, early_pair, 2.0 * static_cast<double>(size) / (product * 1e-6));
      CHECK(cudaFree(a));
      CHECK(cudaFree(b));
      CHECK(cudaFree(wide));
      CHECK(cudaFree(weights));
    }
}

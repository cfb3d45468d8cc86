/* The CUDA runtime calls of the stand-in torch, made from a library as torch makes them, so that a
 * preloaded hook sees them. */
#include <stddef.h>

#define STANDIN_API __attribute__((visibility("default")))

int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaGetLastError(void);
int cudaGetDevice(int*);
int cudaSetDevice(int);
int cudaMemGetInfo(size_t*, size_t*);

STANDIN_API int standin_torch_malloc(void** at, size_t size) {
  const int result = cudaMalloc(at, size);
  if (result != 0) (void)cudaGetLastError();
  return result;
}
STANDIN_API int standin_torch_free(void* at) {
  return cudaFree(at);
}
STANDIN_API int standin_torch_device(void) {
  int device = 0;
  return cudaGetDevice(&device) == 0 ? device : -1;
}
STANDIN_API int standin_torch_set_device(int device) {
  return cudaSetDevice(device);
}
STANDIN_API int standin_torch_memory(size_t* free, size_t* total) {
  return cudaMemGetInfo(free, total);
}

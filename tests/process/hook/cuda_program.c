/* A CUDA program as its author would write it: it knows the runtime, not Neap. Preloaded, its
 * allocations are counted, or become regions under NEAP_TAG. Neap is looked for at run time so that
 * the test can look inside.
 *
 *   cuda_program outside    allocations without a scope are passed on
 *   cuda_program inside     with NEAP_TAG: they are regions, and survive a pause
 *   cuda_program full       allocates until the card is full, then frees and goes on
 *   cuda_program scope      scopes from the program itself
 *   cuda_program peer       with two devices and NEAP_TAG: a second one writes the first one's memory */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "neap/neap.h"

int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaMallocAsync(void**, size_t, void*);
int cudaFreeAsync(void*, void*);
int cudaMallocManaged(void**, size_t, unsigned);
int cudaMemcpy(void*, const void*, size_t, int);
int cudaMemset(void*, int, size_t);
int cudaGetLastError(void);
int cudaStreamCreate(void**);
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaSetDevice(int);
int cudaDeviceEnablePeerAccess(int, unsigned);

#define MIB (1024ull * 1024ull)
#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

#define NEAP_FUNCTION(name) ((__typeof__(&(name)))dlsym(RTLD_DEFAULT, #name))

static neap_totals totals(void) {
  neap_totals now;
  memset(&now, 0, sizeof now);
  now.struct_size = sizeof now;
  CHECK(NEAP_FUNCTION(neap_stats)(&now) == NEAP_OK);
  return now;
}

static void outside(void) {
  void *a = NULL, *b = NULL, *c = NULL, *stream = NULL;
  CHECK(cudaMalloc(&a, 3 * MIB) == 0);
  CHECK(cudaStreamCreate(&stream) == 0);
  CHECK(cudaMallocAsync(&b, 5 * MIB, stream) == 0);
  CHECK(cudaMallocManaged(&c, 7 * MIB, 1) == 0);
  CHECK(cudaFree(NULL) == 0);
  if (dlsym(RTLD_DEFAULT, "neap_stats") != NULL) {
    neap_totals now = totals();
    CHECK(now.regions == 0);
    CHECK(now.outside_blocks == 3 && now.outside_bytes == 15 * MIB);
    CHECK(cudaMalloc(&a, 1ull << 50) == 2 && cudaGetLastError() == 2);
    now = totals();
    CHECK(now.outside_failures == 1);
  }
  CHECK(cudaFree(a) == 0 && cudaFreeAsync(b, stream) == 0 && cudaFree(c) == 0);
  CHECK(cudaFree((void*)0x5000) != 0);
  if (dlsym(RTLD_DEFAULT, "neap_stats") != NULL) {
    const neap_totals now = totals();
    CHECK(now.outside_blocks == 0 && now.outside_bytes == 0 && now.outside_peak_bytes == 15 * MIB);
  }
}

static void inside(void) {
  unsigned char* host = malloc(4 * MIB);
  for (size_t i = 0; i < 4 * MIB; ++i) host[i] = (unsigned char)(i * 7);
  void *a = NULL, *b = NULL, *managed = NULL, *stream = NULL;
  CHECK(cudaStreamCreate(&stream) == 0);
  CHECK(cudaMalloc(&a, 4 * MIB) == 0);
  CHECK(cudaMallocAsync(&b, MIB, stream) == 0);
  CHECK(cudaMallocManaged(&managed, MIB, 1) == 0);
  CHECK(cudaMemcpy(a, host, 4 * MIB, 1) == 0);
  neap_totals now = totals();
  CHECK(now.regions == 2 && now.mapped_bytes == 6 * MIB && now.outside_blocks == 1);
  CHECK(NEAP_FUNCTION(neap_pause)(NULL, 0, NULL, NULL) == NEAP_OK);
  now = totals();
  CHECK(now.mapped_bytes == 0);
  CHECK(cudaMemcpy(host, a, MIB, 2) == 700); /* it is not there */
  CHECK(NEAP_FUNCTION(neap_resume)(NULL, 0, NULL, NULL) == NEAP_OK);
  memset(host, 0, 4 * MIB);
  CHECK(cudaMemcpy(host, a, 4 * MIB, 2) == 0);
  for (size_t i = 0; i < 4 * MIB; ++i) CHECK(host[i] == (unsigned char)(i * 7));
  CHECK(cudaFree((char*)a + 1) == 1); /* the inside of a region is nobody's to free */
  CHECK(cudaFree(a) == 0 && cudaFreeAsync(b, stream) == 0 && cudaFree(managed) == 0);
  now = totals();
  CHECK(now.regions == 0);
  free(host);
}

static void full(void) {
  void* blocks[64];
  int count = 0, result = 0;
  while (count < 64 && (result = cudaMalloc(&blocks[count], 16 * MIB)) == 0) ++count;
  CHECK(result == 2 && count > 0);
  void* huge = NULL;
  CHECK(cudaMalloc(&huge, SIZE_MAX) == 2 && cudaMalloc(&huge, 1ull << 57) == 2 && huge == NULL);
  CHECK(cudaFree(blocks[--count]) == 0);
  CHECK(cudaMalloc(&blocks[count], 16 * MIB) == 0);
  ++count;
  while (count > 0) CHECK(cudaFree(blocks[--count]) == 0);
  /* Pages that the store kept must serve the rest of the program too. */
  const neap_totals now = totals();
  uint64_t released = 0;
  CHECK(NEAP_FUNCTION(neap_release_store)(-1, 0, &released) == NEAP_OK);
  CHECK(released == now.page_store_bytes);
}

static void scope(const char* registers) {
  void *in = NULL, *out = NULL;
  neap_scope wanted = NEAP_SCOPE_INIT;
  wanted.tag = "kv";
  /* What NCCL registers in captured graphs does not survive a pause: off unless asked for. Set before main, never
   * later: another thread may be reading the environment. */
  CHECK(getenv("NCCL_GRAPH_REGISTER") != NULL &&
        strcmp(getenv("NCCL_GRAPH_REGISTER"), registers) == 0);
  CHECK(unsetenv("NCCL_GRAPH_REGISTER") == 0);
  CHECK(NEAP_FUNCTION(neap_scope_enter)(&wanted) == NEAP_OK);
  CHECK(getenv("NCCL_GRAPH_REGISTER") == NULL);
  CHECK(cudaMalloc(&in, MIB) == 0);
  CHECK(NEAP_FUNCTION(neap_scope_exit)() == NEAP_OK);
  CHECK(cudaMalloc(&out, MIB) == 0);
  neap_region region = NEAP_REGION_INIT;
  CHECK(NEAP_FUNCTION(neap_region_find)(in, &region) == NEAP_OK && strcmp(region.tag, "kv") == 0);
  CHECK(NEAP_FUNCTION(neap_region_find)(out, &region) == NEAP_NOT_FOUND);
  CHECK(cudaMemset(in, 1, MIB) == 0);
  /* Paused memory can be freed, and a program may end with regions alive. */
  CHECK(NEAP_FUNCTION(neap_pause)(NULL, 0, NULL, NULL) == NEAP_OK);
  CHECK(cudaFree(in) == 0);
}

static void peer(void) {
  unsigned char byte = 0;
  void *before = NULL, *after = NULL;
  CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&before, 4 * MIB) == 0);
  CHECK(cudaSetDevice(1) == 0);
  CHECK(cudaMemset(before, 1, MIB) != 0); /* device 1 has no access yet */
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == 0);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == 704);
  CHECK(cudaMemset(before, 7, 4 * MIB) == 0);
  CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&after, 4 * MIB) == 0);
  for (int cycle = 1; cycle < 4; ++cycle) {
    CHECK(NEAP_FUNCTION(neap_pause)(NULL, 0, NULL, NULL) == NEAP_OK);
    CHECK(NEAP_FUNCTION(neap_resume)(NULL, 0, NULL, NULL) == NEAP_OK);
    CHECK(cudaSetDevice(1) == 0);
    CHECK(cudaMemset(before, cycle, 4 * MIB) == 0 && cudaMemset(after, cycle, 4 * MIB) == 0);
    CHECK(cudaMemcpy(&byte, (char*)after + 4 * MIB - 1, 1, 2) == 0 && byte == cycle);
  }
  /* The other way round nobody asked. */
  void* own = NULL;
  CHECK(cudaMalloc(&own, MIB) == 0 && cudaSetDevice(0) == 0 && cudaMemset(own, 1, MIB) != 0);
  CHECK(NEAP_FUNCTION(neap_grant_peer)(1, 0) == NEAP_OK && cudaMemset(own, 1, MIB) == 0);
  CHECK(NEAP_FUNCTION(neap_grant_peer)(1, 1) == NEAP_OK);
  CHECK(NEAP_FUNCTION(neap_grant_peer)(1, 9) == NEAP_INVALID_ARGUMENT);
  CHECK(NEAP_FUNCTION(neap_grant_peer)(1, -1) == NEAP_INVALID_ARGUMENT);
  CHECK(cudaFree(before) == 0 && cudaFree(after) == 0 && cudaFree(own) == 0);
}

static void* current_context(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*get)(void**) = (int (*)(void**))dlsym(driver, "cuCtxGetCurrent");
  void* context = NULL;
  return get(&context) == 0 ? context : NULL;
}
static void* other_thread(void* argument) {
  (void)argument;
  void* in = NULL;
  CHECK(cudaMalloc(&in, MIB) == 0 && current_context() != NULL);
  CHECK(cudaFree(in) == 0);
  return NULL;
}
static void driver_context(void) {
  void* in = NULL;
  pthread_t thread;
  CHECK(cudaMalloc(&in, MIB) == 0 && current_context() != NULL);
  CHECK(totals().regions == 1);
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(cudaFree(in) == 0);
}

static void capture(void) {
  void *stream = NULL, *before = NULL, *node = NULL, *graph = NULL;
  CHECK(cudaStreamCreate(&stream) == 0);
  CHECK(cudaMallocAsync(&before, MIB, stream) == 0 && totals().regions == 1);
  CHECK(cudaStreamBeginCapture(stream, 2) == 0);
  /* A node of the graph, which only the runtime can make. */
  CHECK(cudaMallocAsync(&node, MIB, stream) == 0 && totals().regions == 1);
  CHECK(cudaFreeAsync(node, stream) == 0);
  /* A region is no node; and finding that out breaks no capture. */
  CHECK(cudaFreeAsync(before, stream) == 900 && totals().regions == 1);
  CHECK(cudaStreamEndCapture(stream, &graph) == 0 && graph != NULL);
  CHECK(cudaFreeAsync(before, stream) == 0 && totals().regions == 0);
}

static void *late, *late_stream;
static void free_at_exit(void) {
  void (*fail)(const char*, int, int) =
      (void (*)(const char*, int, int))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "standin_fail");
  fail("cuStreamSynchronize", 1, 4); /* the driver is gone by now */
  fail("cuCtxSynchronize", 1, 4);
  if (cudaFreeAsync(late, late_stream) == 0) puts("ok");
}
static void at_exit(void) {
  CHECK(atexit(free_at_exit) == 0); /* first in, last out */
  CHECK(cudaMalloc(&late, MIB) == 0 && cudaStreamCreate(&late_stream) == 0);
  CHECK(totals().regions == 1);
  exit(0);
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "outside") == 0)
    outside();
  else if (strcmp(what, "inside") == 0)
    inside();
  else if (strcmp(what, "full") == 0)
    full();
  else if (strcmp(what, "scope") == 0)
    scope("0");
  else if (strcmp(what, "registering") == 0)
    scope("1");
  else if (strcmp(what, "peer") == 0)
    peer();
  else if (strcmp(what, "context") == 0)
    driver_context();
  else if (strcmp(what, "exit") == 0)
    at_exit();
  else if (strcmp(what, "capture") == 0)
    capture();
  else
    return 2;
  puts("ok");
  return 0;
}

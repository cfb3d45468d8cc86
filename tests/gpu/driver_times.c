/* Times the driver calls that move pages, for any program: forwards each to libcuda.so.1.
 *
 *   cc -O2 -shared -fPIC -o libdriver_times.so tests/gpu/driver_times.c -Wl,--no-as-needed -l:libcuda.so.1 -ldl
 *
 * LD_PRELOAD it for programs that link the driver; set NEAP_LIBCUDA to it for Neap, which loads the driver
 * at run time. Link it to libcuda.so.1 so that dlsym() finds the other functions through it.
 * driver_times_take() returns what happened since the last call. One thread at a time may call that; the
 * forwarded functions may be called by any thread.
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long u64;
typedef u64 device_pointer;

/* name, parameters, arguments */
#define CALLS(X)                                                                               \
  X(cuMemCreate, (u64 * handle, size_t size, const void* properties, u64 flags),               \
    (handle, size, properties, flags))                                                         \
  X(cuMemRelease, (u64 handle), (handle))                                                      \
  X(cuMemMap, (device_pointer at, size_t size, size_t offset, u64 handle, u64 flags),          \
    (at, size, offset, handle, flags))                                                         \
  X(cuMemSetAccess, (device_pointer at, size_t size, const void* list, size_t count),          \
    (at, size, list, count))                                                                   \
  X(cuMemUnmap, (device_pointer at, size_t size), (at, size))                                  \
  X(cuMemAddressReserve,                                                                       \
    (device_pointer * at, size_t size, size_t alignment, device_pointer hint, u64 flags),      \
    (at, size, alignment, hint, flags))                                                        \
  X(cuMemAddressFree, (device_pointer at, size_t size), (at, size))                            \
  X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total), (free_bytes, total))               \
  X(cuMemGetAllocationGranularity, (size_t * size, const void* properties, int option),        \
    (size, properties, option))                                                                \
  X(cuDeviceGetAttribute, (int* value, int attribute, int device), (value, attribute, device)) \
  X(cuCtxPushCurrent_v2, (void* context), (context))                                           \
  X(cuCtxPopCurrent_v2, (void** context), (context))                                           \
  X(cuCtxSynchronize, (void), ())                                                              \
  X(cuMemHostRegister_v2, (void* at, size_t size, unsigned flags), (at, size, flags))          \
  X(cuMemHostUnregister, (void* at), (at))

enum {
#define NUMBER(name, parameters, arguments) k_##name,
  CALLS(NUMBER)
#undef NUMBER
      kCalls
};

static const char* const names[kCalls] = {
#define NAME(name, parameters, arguments) #name,
    CALLS(NAME)
#undef NAME
};

static struct { u64 count, nanoseconds, longest; } sums[kCalls];

static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

/* dlsym() gives an object pointer, which C does not convert to a function pointer. */
static void find(const char* name, void* function) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* found = library != NULL ? dlsym(library, name) : NULL;
  if (found == NULL) {
    fprintf(stderr, "driver_times: libcuda.so.1 has no %s\n", name);
    abort();
  }
  *(void**)function = found;
}

static void add(int call, u64 nanoseconds) {
  __atomic_add_fetch(&sums[call].count, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&sums[call].nanoseconds, nanoseconds, __ATOMIC_RELAXED);
  u64 longest = __atomic_load_n(&sums[call].longest, __ATOMIC_RELAXED);
  while (longest < nanoseconds &&
         !__atomic_compare_exchange_n(&sums[call].longest, &longest, nanoseconds, 1,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

#define FORWARD(name, parameters, arguments)                          \
  __attribute__((visibility("default"))) int name parameters;         \
  int name parameters {                                               \
    static int(*real) parameters;                                     \
    int(*call) parameters = __atomic_load_n(&real, __ATOMIC_ACQUIRE); \
    if (call == NULL) {                                               \
      find(#name, (void*)&call);                                      \
      __atomic_store_n(&real, call, __ATOMIC_RELEASE);                \
    }                                                                 \
    const u64 begin = now();                                          \
    const int code = call arguments;                                  \
    add(k_##name, now() - begin);                                     \
    return code;                                                      \
  }
CALLS(FORWARD)

/* {"cuMemCreate": [calls, milliseconds, longest call's milliseconds], ...}, and starts from zero. */
__attribute__((visibility("default"))) const char* driver_times_take(void);
const char* driver_times_take(void) {
  static char text[4096];
  size_t used = 0;
  used += (size_t)snprintf(text, sizeof text, "{");
  for (int i = 0; i < kCalls; ++i) {
    const u64 count = __atomic_exchange_n(&sums[i].count, 0, __ATOMIC_RELAXED);
    const u64 whole = __atomic_exchange_n(&sums[i].nanoseconds, 0, __ATOMIC_RELAXED);
    const u64 longest = __atomic_exchange_n(&sums[i].longest, 0, __ATOMIC_RELAXED);
    if (count != 0)
      used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\": [%llu, %.3f, %.3f]",
                               used > 1 ? ", " : "", names[i], count, (double)whole * 1e-6,
                               (double)longest * 1e-6);
  }
  (void)snprintf(text + used, sizeof text - used, "}");
  return text;
}

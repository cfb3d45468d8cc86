/* Moves over several devices: all or none. Runs with NEAP_HOOK_DEVICE=host:64MiBx3. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "check.h"

#define MIB (1024ull * 1024ull)

/* Stands before the C library's: threads run out when a test says so. */
static int threads_left = 1000;
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  typedef int (*Create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  Create next;
  *(void**)&next = dlsym(RTLD_NEXT, "pthread_create");
  if (__atomic_fetch_sub(&threads_left, 1, __ATOMIC_RELAXED) <= 0) return EAGAIN;
  return next(thread, attributes, run, argument);
}

static int state_of(const void* address) {
  neap_region region = NEAP_REGION_INIT;
  CHECK_OK(neap_region_find(address, &region));
  return region.state;
}

static void* region_on(int device, const char* tag, uint64_t size) {
  void* address = NULL;
  CHECK_OK(neap_region_create(device, tag, size, NEAP_HOST, &address));
  memset(address, device + 1, size);
  return address;
}
static void check_and_destroy(void* address, int byte) {
  if (byte >= 0) CHECK(*(unsigned char*)address == byte);
  CHECK_OK(neap_region_destroy(address));
}

static void all_or_none(void) {
  void *zero = region_on(0, "both", 2 * MIB), *one = region_on(1, "both", 50 * MIB), *big = NULL;
  neap_move move = NEAP_MOVE_INIT;
  const char* tags[] = {"both"};
  CHECK_OK(neap_pause(tags, 1, NULL, &move));
  CHECK(move.regions == 2 && move.seconds > 0);
  /* Device 1 has no room left: device 0 must not stay resumed. */
  CHECK_OK(neap_region_create(1, "big", 50 * MIB, NEAP_DISCARD, &big));
  CHECK(neap_resume(tags, 1, NULL, NULL) == NEAP_OUT_OF_DEVICE_MEMORY);
  CHECK(strstr(neap_last_error(), "device 1") != NULL);
  neap_region list[8];
  list[0].struct_size = sizeof list[0];
  size_t count = 0;
  CHECK_OK(neap_regions("both", list, 8, &count));
  CHECK(count == 2);
  for (size_t i = 0; i < count; ++i) CHECK(list[i].state == NEAP_PAUSED);
  CHECK_OK(neap_regions(NULL, NULL, 0, &count));
  CHECK(count == 3);
  check_and_destroy(big, -1);
  CHECK_OK(neap_resume(tags, 1, NULL, &move));
  check_and_destroy(zero, 1);
  check_and_destroy(one, 2);
}

static int32_t refuse_device_one(const neap_region* region, void* user) {
  (void)user;
  return region->device == 1;
}

/* "As it was" also means tags that had been paused, or resident, before the call that failed. */
static void what_was_so_before_stays_so(void) {
  void *early = region_on(0, "early", 2 * MIB), *zero = region_on(0, "both", 2 * MIB),
       *one = region_on(1, "both", 50 * MIB), *big = NULL;
  const char* tags[] = {"early", "both"};
  CHECK_OK(neap_pause(tags, 1, NULL, NULL));
  uint64_t refusing = 0;
  CHECK_OK(neap_add_callbacks(NULL, refuse_device_one, NULL, NULL, &refusing));
  CHECK(neap_pause(NULL, 0, NULL, NULL) == NEAP_CANCELLED);
  CHECK(state_of(early) == NEAP_PAUSED);
  CHECK(state_of(zero) == NEAP_RESIDENT && state_of(one) == NEAP_RESIDENT);
  CHECK(neap_exchange(tags + 1, 1, tags, 1, NULL, NULL) == NEAP_CANCELLED);
  CHECK(state_of(early) == NEAP_PAUSED);
  CHECK(state_of(zero) == NEAP_RESIDENT && state_of(one) == NEAP_RESIDENT);
  CHECK_OK(neap_remove_callbacks(refusing));

  CHECK_OK(neap_pause(tags + 1, 1, NULL, NULL));
  CHECK_OK(neap_resume(tags, 1, NULL, NULL));
  CHECK_OK(neap_region_create(1, "big", 50 * MIB, NEAP_DISCARD, &big));
  CHECK(neap_resume(NULL, 0, NULL, NULL) == NEAP_OUT_OF_DEVICE_MEMORY);
  CHECK(state_of(early) == NEAP_RESIDENT && state_of(big) == NEAP_RESIDENT);
  CHECK(state_of(zero) == NEAP_PAUSED && state_of(one) == NEAP_PAUSED);
  check_and_destroy(big, -1);
  CHECK_OK(neap_resume(NULL, 0, NULL, NULL));
  check_and_destroy(early, 1);
  check_and_destroy(zero, 1);
  check_and_destroy(one, 2);
}

static void without_threads(void) {
  void* regions[3];
  for (int i = 0; i < 3; ++i) { /* nothing to copy: that takes threads of its own */
    CHECK_OK(neap_region_create(i, "all", 2 * MIB, NEAP_ZERO, &regions[i]));
  }
  for (int left = 0; left < 3; ++left) {
    neap_move move = NEAP_MOVE_INIT;
    threads_left = left;
    CHECK_OK(neap_pause(NULL, 0, NULL, &move));
    CHECK(move.regions == 3);
    threads_left = left;
    CHECK_OK(neap_resume(NULL, 0, NULL, &move));
    CHECK(move.regions == 3);
  }
  threads_left = 1000;
  for (int i = 0; i < 3; ++i) check_and_destroy(regions[i], 0);
}

int main(void) {
  all_or_none();
  what_was_so_before_stays_so();
  without_threads();
  puts("ok");
  return 0;
}

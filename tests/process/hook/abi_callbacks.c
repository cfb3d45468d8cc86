/* neap.h from C: callbacks about regions, and regions that are kept resident. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "abi_test.h"

static int32_t refuse(const neap_region* region, void* user) {
  (void)region;
  ++*(int*)user;
  return 1;
}
static int32_t count_call(const neap_region* region, void* user) {
  CHECK(region->struct_size == sizeof *region && strcmp(region->tag, "told") == 0);
  ++*(int*)user;
  return 0;
}

void callbacks(void) {
  void* address = NULL;
  CHECK_OK(neap_region_create(0, "told", 2 * MIB, NEAP_HOST, &address));
  fill(address, 2 * MIB, 8);
  int before = 0, after = 0, refusals = 0;
  uint64_t counted = 0, refusing = 0, after_id = 0;
  CHECK_OK(neap_add_callbacks("told", count_call, NULL, &before, &counted));
  CHECK_OK(neap_add_callbacks("told", NULL, count_call, &after, &after_id));
  const char* tags[] = {"told"};
  CHECK_OK(neap_pause(tags, 1, NULL, NULL));
  CHECK_OK(neap_resume(tags, 1, NULL, NULL));
  CHECK(before == 1 && after == 1);
  CHECK_OK(neap_add_callbacks(NULL, refuse, NULL, &refusals, &refusing));
  CHECK(neap_pause(tags, 1, NULL, NULL) == NEAP_CANCELLED);
  CHECK(refusals == 1);
  neap_region region = NEAP_REGION_INIT;
  CHECK_OK(neap_region_find(address, &region));
  CHECK(region.state == NEAP_RESIDENT);
  CHECK(holds(address, 2 * MIB, 8));
  CHECK_OK(neap_remove_callbacks(refusing));
  CHECK(neap_remove_callbacks(refusing) == NEAP_NOT_FOUND);
  CHECK_OK(neap_remove_callbacks(counted));
  CHECK_OK(neap_remove_callbacks(after_id));
  CHECK_OK(neap_region_destroy(address));
}

/* Removing waits for a call under way, which itself uses the interface. */
static int calling = 0, called = 0;
static int32_t slow(const neap_region* region, void* user) {
  (void)region;
  (void)user;
  uint64_t id = 0;
  __atomic_store_n(&calling, 1, __ATOMIC_RELEASE);
  usleep(100000);
  CHECK_OK(neap_add_callbacks("nobody", slow, NULL, NULL, &id));
  CHECK_OK(neap_remove_callbacks(id));
  __atomic_store_n(&called, 1, __ATOMIC_RELEASE);
  return 0;
}
static void* pause_slowly(void* tag) {
  const char* name = tag;
  CHECK_OK(neap_pause(&name, 1, NULL, NULL));
  return NULL;
}
void removing(void) {
  void* address = NULL;
  uint64_t id = 0;
  pthread_t thread;
  static char tag[] = "slow";
  CHECK_OK(neap_region_create(0, tag, 2 * MIB, NEAP_DISCARD, &address));
  CHECK_OK(neap_add_callbacks(tag, slow, NULL, NULL, &id));
  CHECK(pthread_create(&thread, NULL, pause_slowly, tag) == 0);
  while (!__atomic_load_n(&calling, __ATOMIC_ACQUIRE)) usleep(1000);
  CHECK_OK(neap_remove_callbacks(id));
  CHECK(__atomic_load_n(&called, __ATOMIC_ACQUIRE));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(neap_region_destroy(address));
}

void keeping(void) {
  void *stays = NULL, *goes = NULL;
  const char* tag = "mixed";
  uint64_t bytes = 0;
  neap_region region = NEAP_REGION_INIT;
  CHECK_OK(neap_region_create(0, tag, 4 * MIB, NEAP_HOST, &stays));
  CHECK_OK(neap_region_create(0, tag, 4 * MIB, NEAP_HOST, &goes));
  CHECK(neap_keep_resident(stays, 1, NULL) == NEAP_INVALID_ARGUMENT);
  CHECK(neap_keep_resident(&region, 1, &bytes) == NEAP_NOT_FOUND && bytes == 0);
  CHECK_OK(neap_keep_resident((char*)stays + 5, 1, &bytes));
  CHECK(bytes == 4 * MIB);
  CHECK_OK(neap_pause(&tag, 1, NULL, NULL));
  CHECK_OK(neap_region_find(stays, &region));
  CHECK(region.state == NEAP_RESIDENT && region.kept == 1);
  CHECK_OK(neap_region_find(goes, &region));
  CHECK(region.state == NEAP_PAUSED && region.kept == 0);
  CHECK(neap_keep_resident(goes, 1, &bytes) == NEAP_BUSY && bytes == 4 * MIB);
  CHECK_OK(neap_region_destroy(stays));
  CHECK_OK(neap_region_destroy(goes));
}

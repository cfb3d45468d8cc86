/* neap.h from C, on the host device: every call once as it should be used, and once as it should
 * not. Runs with NEAP_HOOK_DEVICE=host:64MiBx2. */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi_test.h"

static void errors(void) {
  CHECK(neap_abi_version() == NEAP_ABI_VERSION);
  CHECK(strcmp(neap_version(), "0.1.0") == 0);
  CHECK(strcmp(neap_status_name(NEAP_OUT_OF_DEVICE_MEMORY), "out of device memory") == 0);
  CHECK(strcmp(neap_last_error(), "") == 0);
  neap_shortage shortage = NEAP_SHORTAGE_INIT;
  CHECK(neap_last_shortage(&shortage) == NEAP_NOT_FOUND);

  void* untouched = (void*)0x1234;
  CHECK(neap_region_create(0, "", MIB, NEAP_DISCARD, &untouched) == NEAP_INVALID_ARGUMENT);
  const char* const bad[] = {"caf\xe9", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    CHECK(neap_region_create(0, bad[i], MIB, NEAP_DISCARD, &untouched) == NEAP_INVALID_ARGUMENT);
    CHECK(strstr(neap_last_error(), "tag") != NULL);
    neap_scope scope = NEAP_SCOPE_INIT;
    scope.tag = bad[i];
    CHECK(neap_scope_enter(&scope) == NEAP_INVALID_ARGUMENT);
  }
  neap_scope named = NEAP_SCOPE_INIT;
  named.tag = "caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x82\xac";
  CHECK_OK(neap_scope_enter(&named));
  CHECK_OK(neap_scope_exit());
  CHECK(neap_region_create(0, "t", 0, NEAP_DISCARD, &untouched) == NEAP_INVALID_ARGUMENT);
  CHECK(neap_region_create(0, "t", MIB, 9, &untouched) == NEAP_INVALID_ARGUMENT);
  CHECK(neap_region_create(7, "t", MIB, NEAP_DISCARD, &untouched) == NEAP_INVALID_ARGUMENT);
  CHECK(untouched == (void*)0x1234);
  CHECK(strstr(neap_last_error(), "device 7") != NULL);
  CHECK(neap_region_destroy((void*)0x1000) == NEAP_NOT_FOUND);
  neap_region region = {0};
  CHECK(neap_region_find((void*)0x1000, &region) == NEAP_INVALID_ARGUMENT); /* struct_size is 0 */
  CHECK(neap_scope_exit() == NEAP_NOT_FOUND);
  int32_t count = 0;
  CHECK_OK(neap_device_count(&count));
  CHECK(count == 2);
}

static void regions_keep_their_contents(void) {
  void* address = NULL;
  CHECK_OK(neap_region_create(0, "weights", 5 * MIB, NEAP_HOST, &address));
  fill(address, 5 * MIB, 3);
  neap_region region = NEAP_REGION_INIT;
  CHECK_OK(neap_region_find((char*)address + 4 * MIB, &region));
  CHECK(region.address == address && strcmp(region.tag, "weights") == 0);
  CHECK(region.requested == 5 * MIB && region.size == 6 * MIB && region.mapped == 6 * MIB);
  CHECK(region.state == NEAP_RESIDENT && region.policy == NEAP_HOST && region.device == 0);
  const uint64_t version = region.version;

  const char* tags[] = {"weights", "nothing has this tag"};
  CHECK_OK(neap_prepare(tags, 2));
  neap_move move = NEAP_MOVE_INIT;
  CHECK_OK(neap_pause(tags, 2, NULL, &move));
  CHECK(move.regions == 1 && move.bytes == 6 * MIB && move.copied >= 5 * MIB);
  CHECK_OK(neap_region_find(address, &region));
  CHECK(region.state == NEAP_PAUSED && region.mapped == 0);
  const void* host = NULL;
  CHECK_OK(neap_host_copy((char*)address + MIB, 4 * MIB, &host));
  for (size_t i = 0; i < 4 * MIB; ++i)
    CHECK(((const unsigned char*)host)[i] == (unsigned char)((MIB + i) * 31 + 3));
  CHECK(neap_host_copy((char*)address + MIB, 6 * MIB, &host) == NEAP_INVALID_ARGUMENT);
  CHECK_OK(neap_pause(tags, 1, NULL, &move)); /* idempotent */
  CHECK(move.regions == 0);
  CHECK_OK(neap_resume(tags, 1, NULL, &move));
  CHECK(move.regions == 1);
  CHECK_OK(neap_resume(tags, 1, NULL, &move));
  CHECK(move.regions == 0);
  CHECK(holds(address, 5 * MIB, 3));
  CHECK_OK(neap_region_find(address, &region));
  CHECK(region.version > version);
  CHECK(neap_region_destroy((char*)address + 8) == NEAP_INVALID_ARGUMENT);
  CHECK_OK(neap_region_destroy(address));
}

static void policies(void) {
  void *disk = NULL, *zero = NULL;
  CHECK_OK(neap_region_create(0, "disk", 2 * MIB, NEAP_DISK, &disk));
  CHECK_OK(neap_region_create(0, "zero", 2 * MIB, NEAP_ZERO, &zero));
  fill(disk, 2 * MIB, 5);
  fill(zero, 2 * MIB, 5);
  CHECK_OK(neap_pause(NULL, 0, NULL, NULL));
  CHECK_OK(neap_resume(NULL, 0, NULL, NULL));
  CHECK(holds(disk, 2 * MIB, 5));
  for (size_t i = 0; i < 2 * MIB; ++i) CHECK(((unsigned char*)zero)[i] == 0);

  /* A policy given at pause time is the tag's from then on. */
  fill(zero, 2 * MIB, 9);
  neap_pause_options options = NEAP_PAUSE_OPTIONS_INIT;
  options.policy = NEAP_HOST;
  options.fence = NEAP_FENCE_NONE;
  options.release_pages = 1;
  const char* tags[] = {"zero"};
  CHECK_OK(neap_pause(tags, 1, &options, NULL));
  CHECK_OK(neap_resume(tags, 1, NULL, NULL));
  CHECK(holds(zero, 2 * MIB, 9));
  options.fence = NEAP_FENCE_STREAMS; /* of none */
  CHECK_OK(neap_pause(tags, 1, &options, NULL));
  CHECK_OK(neap_resume(tags, 1, NULL, NULL));
  options.stream_count = 1;
  CHECK(neap_pause(tags, 1, &options, NULL) == NEAP_INVALID_ARGUMENT);
  options.stream_count = 0;
  options.fence = 77;
  CHECK(neap_pause(tags, 1, &options, NULL) == NEAP_INVALID_ARGUMENT);
  options.struct_size = 3;
  CHECK(neap_pause(tags, 1, &options, NULL) == NEAP_INVALID_ARGUMENT);
  /* A caller whose struct ends after `policy` gets the defaults for the rest. */
  options.struct_size = sizeof(size_t) + sizeof(neap_policy);
  CHECK_OK(neap_pause(tags, 1, &options, NULL));
  CHECK_OK(neap_region_destroy(disk));
  CHECK_OK(neap_region_destroy(zero)); /* while paused */
}

static void out_of_memory(void) {
  void *first = NULL, *second = NULL, *third = (void*)0x77;
  CHECK_OK(neap_region_create(0, "first", 40 * MIB, NEAP_DISCARD, &first));
  CHECK(neap_region_create(0, "second", 40 * MIB, NEAP_DISCARD, &third) ==
        NEAP_OUT_OF_DEVICE_MEMORY);
  CHECK(neap_region_create(0, "huge", UINT64_MAX, NEAP_DISCARD, &third) ==
        NEAP_OUT_OF_DEVICE_MEMORY);
  CHECK(neap_torch_malloc(INT64_MAX, 0, NULL) == NULL);
  CHECK(third == (void*)0x77);
  CHECK(neap_region_create(0, "second", 40 * MIB, NEAP_DISCARD, &third) ==
        NEAP_OUT_OF_DEVICE_MEMORY);
  neap_shortage shortage = NEAP_SHORTAGE_INIT;
  CHECK_OK(neap_last_shortage(&shortage));
  CHECK(shortage.need == 40 * MIB && shortage.free == 24 * MIB && shortage.capacity == 64 * MIB);
  CHECK(shortage.holders == 1);
  const char* tag = NULL;
  uint64_t bytes = 0;
  CHECK_OK(neap_last_holder(0, &tag, &bytes));
  CHECK(strcmp(tag, "first") == 0 && bytes == 40 * MIB);
  CHECK(neap_last_holder(1, &tag, &bytes) == NEAP_NOT_FOUND);

  CHECK_OK(neap_region_create_paused(0, "second", 40 * MIB, NEAP_DISCARD, &second));
  const char* second_tag[] = {"second"};
  const char* first_tag[] = {"first"};
  neap_resume_options wait = NEAP_RESUME_OPTIONS_INIT;
  wait.wait_ms = 20;
  const neap_status waited = neap_resume(second_tag, 1, &wait, NULL);
  CHECK(waited == NEAP_OUT_OF_DEVICE_MEMORY);
  neap_move move = NEAP_MOVE_INIT;
  CHECK_OK(neap_exchange(first_tag, 1, second_tag, 1, NULL, &move));
  neap_region region = NEAP_REGION_INIT;
  CHECK_OK(neap_region_find(second, &region));
  CHECK(region.state == NEAP_RESIDENT);
  fill(second, 40 * MIB, 1);
  CHECK(neap_exchange(NULL, 0, first_tag, 1, NULL, NULL) == NEAP_INVALID_ARGUMENT);

  /* Elastic: the second half goes and comes back. */
  CHECK_OK(neap_shrink(second, 20 * MIB, 20 * MIB, &move));
  CHECK_OK(neap_region_find(second, &region));
  CHECK(region.mapped == region.size - move.bytes && move.bytes > 0);
  CHECK(holds(second, 20 * MIB, 1));
  CHECK_OK(neap_grow(second, 20 * MIB, 20 * MIB, &move));
  CHECK_OK(neap_region_destroy(second));
  CHECK_OK(neap_region_destroy(first));
  uint64_t released = 0;
  CHECK_OK(neap_release_store(-1, 0, &released));
  CHECK(released == 40 * MIB);
}

static void sharing(void) {
  void *source = NULL, *alias = NULL, *imported = NULL;
  CHECK_OK(neap_region_create(0, "trainer", 4 * MIB, NEAP_HOST, &source));
  fill(source, 4 * MIB, 4);
  CHECK_OK(neap_region_alias("rollout", source, &alias));
  CHECK(alias != source && holds(alias, 4 * MIB, 4));
  ((char*)alias)[5] = 1;
  CHECK(((char*)source)[5] == 1);
  CHECK_OK(neap_region_destroy(alias));

  neap_page pages[16];
  size_t count = 0;
  CHECK(neap_export(source, pages, 0, &count) == NEAP_INVALID_ARGUMENT);
  CHECK(count >= 1 && count <= 16);
  CHECK_OK(neap_export(source, pages, 16, &count));
  CHECK_OK(neap_import(0, "importer", pages, count, &imported));
  for (size_t i = 0; i < count; ++i) CHECK(close(pages[i].descriptor) == 0);
  ((char*)imported)[6] = 2;
  CHECK(((char*)source)[6] == 2);
  CHECK(neap_import(0, "importer", pages, 0, &imported) == NEAP_INVALID_ARGUMENT);
  CHECK_OK(neap_region_destroy(imported));
  CHECK_OK(neap_region_destroy(source));
}

static void* in_thread(void* tag) {
  neap_scope scope = NEAP_SCOPE_INIT;
  CHECK_OK(neap_scope_current(&scope));
  CHECK(scope.enabled == (tag != NULL));
  if (tag != NULL) CHECK(strcmp(scope.tag, tag) == 0);
  return NULL;
}

static void scopes(void) {
  pthread_t thread;
  neap_scope now = NEAP_SCOPE_INIT;
  neap_scope scope = NEAP_SCOPE_INIT;
  scope.tag = "outer";
  CHECK_OK(neap_scope_enter(&scope));
  CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  scope.tag = "inner";
  scope.policy = NEAP_DISK;
  scope.all_threads = 1;
  CHECK_OK(neap_scope_enter(&scope));
  CHECK(pthread_create(&thread, NULL, in_thread, "inner") == 0 && pthread_join(thread, NULL) == 0);
  scope.enabled = 0;
  scope.all_threads = 0;
  CHECK_OK(neap_scope_enter(&scope));
  CHECK_OK(neap_scope_current(&now));
  CHECK(now.enabled == 0);
  CHECK_OK(neap_scope_exit());
  CHECK_OK(neap_scope_current(&now));
  CHECK(now.enabled == 1 && strcmp(now.tag, "inner") == 0 && now.policy == NEAP_DISK);
  CHECK_OK(neap_scope_exit());
  CHECK_OK(neap_scope_current(&now));
  CHECK(strcmp(now.tag, "outer") == 0);

  /* PyTorch's allocator follows the scope. */
  void* memory = neap_torch_malloc(3 * MIB, 1, NULL);
  neap_region region = NEAP_REGION_INIT;
  CHECK_OK(neap_region_find(memory, &region));
  CHECK(strcmp(region.tag, "outer") == 0 && region.device == 1);
  CHECK(neap_torch_malloc(1024 * MIB, 0, NULL) == NULL);
  neap_torch_free(memory, 3 * MIB, 1, NULL);
  CHECK(neap_region_find(memory, &region) == NEAP_NOT_FOUND);
  CHECK_OK(neap_scope_exit());
}

static void numbers(const char* trace) {
  CHECK_OK(neap_trace_start(trace));
  CHECK(neap_trace_start(trace) == NEAP_BUSY);
  void* address = NULL;
  CHECK_OK(neap_phase_begin("generate"));
  CHECK_OK(neap_region_create(0, "kv \"cache\"\n", 2 * MIB, NEAP_DISCARD, &address));
  CHECK_OK(neap_pause(NULL, 0, NULL, NULL));
  CHECK_OK(neap_phase_end("generate"));
  CHECK_OK(neap_mark("done"));
  char text[8192];
  size_t length = 0;
  CHECK_OK(neap_stats_json(text, sizeof text, &length));
  CHECK(length < sizeof text && strstr(text, "\"kv \\\"cache\\\"\\n\"") != NULL);
  char small[10];
  CHECK_OK(neap_stats_json(small, sizeof small, &length));
  CHECK(length > sizeof small && strlen(small) == 9 && memcmp(small, text, 9) == 0);
  CHECK_OK(neap_stats_prometheus(text, sizeof text, &length));
  CHECK(
      strstr(text, "neap_tag_bytes{device=\"0\",tag=\"kv \\\"cache\\\"\\n\",place=\"mapped\"} 0") !=
      NULL);
  neap_totals totals;
  memset(&totals, 0, sizeof totals);
  totals.struct_size = sizeof totals;
  CHECK_OK(neap_stats(&totals));
  CHECK(totals.regions == 1 && totals.virtual_bytes == 2 * MIB && totals.mapped_bytes == 0);
  CHECK(totals.pauses > 0 && totals.page_store_bytes > 0);
  CHECK_OK(neap_region_destroy(address));
  CHECK_OK(neap_trace_stop());
  CHECK(neap_trace_stop() == NEAP_NOT_FOUND);
  CHECK(neap_trace_start("/nowhere/at/all.trace") == NEAP_NOT_FOUND);
}

static void configuration(void) {
  neap_options options = NEAP_OPTIONS_INIT;
  options.margin = 60 * MIB;
  CHECK_OK(neap_configure(&options));
  void* address = NULL;
  CHECK(neap_region_create(0, "t", 8 * MIB, NEAP_DISCARD, &address) == NEAP_OUT_OF_DEVICE_MEMORY);
  CHECK(neap_region_create(0, "t", UINT64_MAX - MIB, NEAP_DISCARD, &address) ==
        NEAP_OUT_OF_DEVICE_MEMORY);
  options.touch_threads = 3;
  CHECK(neap_configure(&options) == NEAP_BUSY); /* a device is open */
  options.touch_threads = 0;
  /* The rest holds for moves that begin later. */
  options.margin = 0;
  options.keep_host_buffers = 0;
  options.disk_folder = "/nowhere/at/all";
  CHECK_OK(neap_configure(&options));
  CHECK_OK(neap_region_create(0, "later", 2 * MIB, NEAP_DISK, &address));
  const char* later[] = {"later"};
  CHECK(neap_pause(later, 1, NULL, NULL) == NEAP_IO);
  options.disk_folder = NULL;
  CHECK_OK(neap_configure(&options));
  CHECK_OK(neap_pause(later, 1, NULL, NULL));
  CHECK_OK(neap_region_destroy(address));
  options.keep_host_buffers = 1;
  options.margin = 0;
  CHECK_OK(neap_configure(&options));
}

/* The documented state of a forked child: a clear refusal, no hang and no crash. */
static void fork_is_refused(void) {
  void* address = NULL;
  CHECK_OK(neap_region_create(0, "forked", 2 * MIB, NEAP_HOST, &address));
  const pid_t child = fork();
  if (child == 0) {
    void* mine = NULL;
    CHECK(neap_region_create(0, "child", MIB, NEAP_DISCARD, &mine) == NEAP_UNSUPPORTED);
    CHECK(strstr(neap_last_error(), "fork") != NULL);
    CHECK(neap_pause(NULL, 0, NULL, NULL) == NEAP_UNSUPPORTED);
    CHECK(neap_region_destroy(address) == NEAP_UNSUPPORTED);
    size_t length = 0;
    CHECK_OK(neap_stats_json(NULL, 0, &length));
    exit(0); /* with static destructors and atexit handlers */
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_OK(neap_pause(NULL, 0, NULL, NULL));
  CHECK_OK(neap_resume(NULL, 0, NULL, NULL));
  CHECK_OK(neap_region_destroy(address));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  errors();
  regions_keep_their_contents();
  policies();
  out_of_memory();
  callbacks();
  removing();
  keeping();
  sharing();
  scopes();
  numbers(argv[1]);
  configuration();
  fork_is_refused();
  puts("ok");
  return 0;
}

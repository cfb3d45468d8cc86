/* Preloaded into a program whose device is host memory: ends it as kill -9 does at the KILL_AT-th time that it puts a
 * page at an address, or writes how often it did so into MAP_COUNT_FILE. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long count;

static void count_map(int flags) {
  static atomic_long kill_at = -1;
  const int wanted = MAP_SHARED | MAP_FIXED;
  if ((flags & wanted) != wanted) return;
  if (kill_at == -1) {
    const char* text = getenv("KILL_AT");
    kill_at = text != NULL ? atol(text) : 0;
  }
  if (atomic_fetch_add(&count, 1) + 1 == kill_at) kill(getpid(), SIGKILL);
}

void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  count_map(flags);
  return (void*)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

void* mmap64(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  count_map(flags);
  return (void*)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

__attribute__((destructor)) static void write_count(void) {
  const char* path = getenv("MAP_COUNT_FILE");
  FILE* file = path != NULL ? fopen(path, "w") : NULL;
  if (file == NULL) return;
  fprintf(file, "%ld\n", count);
  fclose(file);
}

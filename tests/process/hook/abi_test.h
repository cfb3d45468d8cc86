/* What the files of the test share: contents that can be told, and the parts in other files. */
#ifndef NEAP_TESTS_ABI_TEST_H_
#define NEAP_TESTS_ABI_TEST_H_

#include "check.h"

#define MIB (1024ull * 1024ull)

static inline void fill(void* at, size_t size, unsigned char seed) {
  unsigned char* bytes = at;
  for (size_t i = 0; i < size; ++i) bytes[i] = (unsigned char)(i * 31 + seed);
}
static inline int holds(const void* at, size_t size, unsigned char seed) {
  const unsigned char* bytes = at;
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] != (unsigned char)(i * 31 + seed)) return 0;
  }
  return 1;
}

void callbacks(void);
void removing(void);
void keeping(void);

#endif

/* The smallest test frame that C and a preloaded process can share. */
#ifndef NEAP_TESTS_CHECK_H_
#define NEAP_TESTS_CHECK_H_

#include <stdio.h>
#include <stdlib.h>

#include "neap/neap.h"

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition, \
              neap_last_error());                                                                  \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define CHECK_OK(call) CHECK((call) == NEAP_OK)

#endif

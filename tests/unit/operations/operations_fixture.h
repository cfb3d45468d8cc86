// The types that every operation is compared in.
#pragma once

#include <gtest/gtest.h>

#include "conformance.h"

namespace neap {

class Operations : public ::testing::TestWithParam<step::Dtype> {
 protected:
  template <class Prepare>
  static void same(const char* name, const Prepare& prepare) {
    testing::expect_same_requests(name, prepare);
  }
};

}  // namespace neap

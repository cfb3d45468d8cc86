// Pairs of an answer and a truth, compared both ways.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "reward/symbolic.h"

namespace neap::reward {

inline bool symbolically_equal(std::string_view answer, std::string_view truth) {
  return SymbolicTruth(truth).equals(answer);
}

struct Pair {
  const char* answer;
  const char* truth;
};

inline void expect_equal(std::initializer_list<Pair> pairs) {
  for (const Pair& p : pairs) {
    EXPECT_TRUE(symbolically_equal(p.answer, p.truth)) << p.answer << " and " << p.truth;
    EXPECT_TRUE(symbolically_equal(p.truth, p.answer)) << p.truth << " and " << p.answer;
  }
}
inline void expect_different(std::initializer_list<Pair> pairs) {
  for (const Pair& p : pairs) {
    EXPECT_FALSE(symbolically_equal(p.answer, p.truth)) << p.answer << " and " << p.truth;
    EXPECT_FALSE(symbolically_equal(p.truth, p.answer)) << p.truth << " and " << p.answer;
  }
}

}  // namespace neap::reward

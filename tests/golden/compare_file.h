// A text against the file that holds it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace neap::testing {

/// With NEAP_UPDATE_GOLDEN in the environment the file is written anew, which fails the test.
inline void compare_file(const std::filesystem::path& file, const std::string& text) {
  if (std::getenv("NEAP_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(file, text).ok());
    FAIL() << file << " is written anew; run again without NEAP_UPDATE_GOLDEN";
  }
  const Result<std::string> expected = read_file(file);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  EXPECT_EQ(text, *expected) << file;
}

}  // namespace neap::testing

// A folder for checkpoints.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/format.h"

namespace neap::weights {

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              format("neap-checkpoint-{}-{}", ::getpid(),
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

}  // namespace neap::weights

// A folder for the files of one test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace neap::data {

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::temp_directory_path() /
            ("neap-data-" + std::to_string(::getpid()) + "-" + test->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  [[nodiscard]] std::filesystem::path write(const std::string& name,
                                            const std::string& bytes) const {
    std::ofstream(root_ / name, std::ios::binary) << bytes;
    return root_ / name;
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(root_), {}));
  }
  std::filesystem::path root_;
};

}  // namespace neap::data

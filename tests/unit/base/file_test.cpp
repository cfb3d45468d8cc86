#include "base/file.h"

#include <gtest/gtest.h>

#include <fstream>

namespace neap {
namespace {

TEST(File, WritesWholeOrNotAtAll) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "neap_file_test";
  std::filesystem::create_directories(folder);
  const auto path = folder / "a.txt";
  ASSERT_TRUE(write_file_atomic(path, "one").ok());
  ASSERT_TRUE(write_file_atomic(path, "two").ok());
  EXPECT_EQ(read_file(path).value(), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1)
      << "no temporary left behind";
  std::filesystem::remove_all(folder);
}

TEST(File, FullDiskLeavesNothing) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  // A rename onto /dev/full cannot happen: the neighbour lies in /dev, so write to a folder that is
  // missing.
  const Status s = write_file_atomic("/nonexistent-folder/x", "data");
  EXPECT_EQ(s.code(), ErrorCode::kNotFound);
  EXPECT_NE(s.message().find("/nonexistent-folder/x"), std::string::npos);
}

TEST(File, ReadFailuresNameThePath) {
  EXPECT_NE(read_file("/does/not/exist").status().message().find("/does/not/exist"),
            std::string::npos);
  EXPECT_NE(read_file("/tmp").status().message().find("directory"), std::string::npos);
}

}  // namespace
}  // namespace neap

// What the process that reads Parquet may do, with a python3 of the test's own: rows, errors, death.
// tests/process/data reads real files.
#include <gmock/gmock.h>

#include "base/format.h"
#include "data/parquet_source.h"
#include "data/row_source.h"
#include "unit/data/folder.h"

namespace neap::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ParquetTest : public Folder {
 protected:
  void SetUp() override {
    Folder::SetUp();
    path_ = std::getenv("PATH");
    file_ = write("a.parquet", "PAR1 and so on");
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    Folder::TearDown();
  }
  /// `script` is what python3 is.
  void python(const std::string& script) {
    std::filesystem::create_directories(root_ / "bin");
    std::filesystem::permissions(write("bin/python3", "#!/bin/sh\n" + script),
                                 std::filesystem::perms::owner_all);
    ::setenv("PATH", format("{}:{}", (root_ / "bin").string(), path_).c_str(), 1);
  }
  Status read() {
    rows_.clear();
    NEAP_TRY_ASSIGN(const auto source, RowSource::open(file_));
    RawRow row;
    while (true) {
      NEAP_TRY_ASSIGN(const bool more, source->next(row));
      if (!more) return {};
      rows_.push_back(format("{}={}", source->where(row.number), row.text));
    }
  }
  std::string path_;
  std::filesystem::path file_;
  std::vector<std::string> rows_;
};

TEST_F(ParquetTest, RowsAreLinesOfAPipe) {
  python(
      "echo '#rows 2'; sleep 0.1; printf '{\"a\":'; sleep 0.1; echo '1}'; echo '{}'; echo '#end'");
  ASSERT_TRUE(read().ok());
  EXPECT_THAT(rows_, ElementsAre(HasSubstr("a.parquet: row 1={\"a\":1}"), HasSubstr("row 2={}")));
}

TEST_F(ParquetTest, EveryFailureOfTheReaderIsOneError) {
  python("echo '#missing No module named pyarrow'");
  Status status = read();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("a.parquet"), HasSubstr("pip install pyarrow=="),
                                      HasSubstr("No module named pyarrow")));
  python("echo '#rows 2'; echo '{}'; echo '#error row 2: broken'");
  status = read();
  EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("as Parquet after row 1: row 2: broken"));
  python("echo '#rows 2'; echo '{}'; echo oh no >&2; kill -SEGV $$");
  EXPECT_THAT(read().message(),
              AllOf(HasSubstr("after row 1"), HasSubstr("signal 11"), HasSubstr("oh no")));
  python("echo '#rows 2'; echo '{}'");  // no #end
  EXPECT_THAT(read().message(), AllOf(HasSubstr("after row 1"), HasSubstr("closed its stdout")));
  python("echo hello");
  EXPECT_FALSE(read().ok());
  ::setenv("PATH", "/nowhere", 1);
  EXPECT_THAT(read().message(), HasSubstr("needs python3 with pyarrow"));
}

TEST_F(ParquetTest, AReaderThatSaysNothingIsNotWaitedFor) {
  python("echo '#rows 2'; echo '{}'; exec sleep 100");
  auto source = open_parquet(file_, std::chrono::milliseconds(1000));
  ASSERT_TRUE(source.ok()) << source.status().message();
  RawRow row;
  ASSERT_TRUE((*source)->next(row).value());
  const auto silent = (*source)->next(row);
  EXPECT_EQ(silent.status().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(silent.status().message(), HasSubstr("after row 1: the python3 that reads it wrote"));
}

}  // namespace
}  // namespace neap::data

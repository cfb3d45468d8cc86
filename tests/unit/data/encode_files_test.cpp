// Files as encoded rows, by several threads, in memory and in the cache.
#include "data/encode_files.h"

#include <gmock/gmock.h>

#include <atomic>

#include "base/format.h"
#include "base/read_limits.h"
#include "unit/data/folder.h"

namespace neap::data {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class EncodeTest : public Folder {
 protected:
  void SetUp() override {
    Folder::SetUp();
    std::string text;
    // Over one block of three threads.
    for (int i = 0; i < kRows; ++i) text += format("row {} {}\n", i, std::string(100, 'x'));
    file_ = write("rows.jsonl", text);
    options_.cache_folder = root_ / "cache";
    options_.threads = 3;
    options_.recipe = "first";
  }
  [[nodiscard]] Result<RowStore> encode(Bytes memory) {
    options_.memory = memory;
    return encode_file(file_, encoder_, options_);
  }
  void expect_all(const RowStore& rows) {
    ASSERT_EQ(rows.size(), kRows - kRows / 10);
    for (std::uint64_t i = 0; i < rows.size(); i += 7)
      ASSERT_THAT(rows.row(i).value(), HasSubstr(format("row {} ", i + 1 + i / 9)));
    EXPECT_EQ(rows.notes()["left out"], kRows / 10);
  }

  static constexpr int kRows = 50000;
  std::filesystem::path file_;
  EncodeOptions options_;
  std::atomic<int> encoded_ = 0;
  std::uint64_t bad_ = 0;
  // Every tenth row is left out.
  RowEncoder encoder_ = [this](const RawRow& row, const std::string& where, EncodedRows& out) {
    ++encoded_;
    if (bad_ > 0 && row.number >= bad_) return Status(ErrorCode::kCorrupt, where + " is bad");
    if (row.number % 10 == 1) {
      ++out.counts["left out"];
    } else {
      out.rows.emplace_back(row.text);
    }
    return ok_status();
  };
};

TEST_F(EncodeTest, RowsKeepTheirOrderInMemoryAndOnDisk) {
  expect_all(encode(1_GiB).value());
  EXPECT_FALSE(std::filesystem::exists(options_.cache_folder)) << "small data leaves nothing";
  EXPECT_GT(encode(1_GiB)->memory(), 5_MiB);
  const RowStore rows = encode(Bytes(0)).value();
  expect_all(rows);
  EXPECT_EQ(rows.memory(), Bytes(0));
}

TEST_F(EncodeTest, WhatIsWrongWithAFileIsWrongInput) {
  const auto code = [&] { return encode(1_GiB).status().code(); };
  bad_ = 7;
  EXPECT_EQ(code(), ErrorCode::kInvalidArgument);
  bad_ = 0;
  for (const char* text : {"[1]\n", "\x1F\x8B and no gzip"}) {
    file_ = write("wrong", text);
    EXPECT_EQ(code(), ErrorCode::kInvalidArgument) << text;
  }
  file_ = root_;
  EXPECT_EQ(code(), ErrorCode::kInvalidArgument) << "a folder";
  file_ = root_ / "missing";
  EXPECT_EQ(code(), ErrorCode::kNotFound);
}

TEST_F(EncodeTest, TheCacheIsFoundByContentAndRecipe) {
  (void)encode(Bytes(0)).value();
  encoded_ = 0;
  (void)encode(Bytes(0)).value();
  std::filesystem::rename(file_, root_ / "renamed");
  file_ = root_ / "renamed";
  (void)encode(Bytes(0)).value();
  EXPECT_EQ(encoded_, 0) << "another name";
  options_.recipe = "second";
  (void)encode(Bytes(0)).value();
  EXPECT_EQ(encoded_, kRows);
  std::ofstream(file_, std::ios::app) << "one more\n";
  EXPECT_EQ(encode(Bytes(0))->size(), kRows - kRows / 10);
  EXPECT_EQ(encoded_, 2 * kRows + 1);
}

TEST_F(EncodeTest, RowsThatOutgrowTheMemoryGoToTheCache) {
  const std::string text = format("{}\n", std::string(2000, 'x'));
  std::string all;
  for (int i = 0; i < 1000; ++i) all += text;
  file_ = write("small.jsonl", all);
  encoder_ = [](const RawRow& row, const std::string&, EncodedRows& out) {
    for (int i = 0; i < 5; ++i) out.rows.emplace_back(row.text);
    return ok_status();
  };
  const RowStore rows = encode(4_MiB).value();
  EXPECT_EQ(rows.size(), 5000U);
  EXPECT_EQ(rows.memory(), Bytes(0));
  EXPECT_TRUE(std::filesystem::exists(options_.cache_folder));
}

TEST_F(EncodeTest, TheFirstErrorIsTheOneThatIsReported) {
  bad_ = 777;  // so are all rows after it, which other threads see first
  for (const Bytes memory : {1_GiB, Bytes(0)}) {
    EXPECT_THAT(encode(memory).status().message(), HasSubstr("rows.jsonl:777 is bad"));
  }
  // An error of a row comes before damage to the file behind it.
  std::ofstream(file_, std::ios::app) << std::string(read_limits::kRow.part.count() + 1, 'x');
  EXPECT_THAT(encode(1_GiB).status().message(), HasSubstr("rows.jsonl:777 is bad"));
  bad_ = 0;
  EXPECT_THAT(encode(1_GiB).status().message(), HasSubstr("rows.jsonl:50001"));
}

TEST_F(EncodeTest, AFileThatChangesMeanwhileIsAnErrorAndLeavesNoRows) {
  const RowEncoder plain = encoder_;
  for (const Bytes memory : {1_GiB, Bytes(0)}) {
    encoder_ = [&](const RawRow& row, const std::string& where, EncodedRows& out) {
      // As another program that appends: half of a row may be read.
      if (row.number == 10) std::ofstream(file_, std::ios::app) << "ro" << std::flush;
      return plain(row, where, out);
    };
    EXPECT_THAT(encode(memory).status().message(),
                HasSubstr("rows.jsonl changed while it was read"));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_))
      EXPECT_THAT(entry.path().string(), Not(HasSubstr(".rows")));
    bad_ = 50001;  // what the half of a row would be to a reader of JSON
  }
  encoder_ = plain;
  bad_ = 0;
  EXPECT_EQ(encode(Bytes(0))->size(), kRows - kRows / 10);
}

TEST_F(EncodeTest, FilesAreNumberedThrough) {
  FileRows rows;
  EXPECT_EQ(rows.size(), 0U);
  for (const std::uint64_t count : {3U, 0U, 2U}) {
    MemoryRowWriter writer(1_MiB);
    for (std::uint64_t i = 0; i < count; ++i)
      ASSERT_TRUE(writer.append(format("{} of {}", i, count)).ok());
    rows.add(writer.finish({}).value(), format("{}.jsonl", count));
  }
  EXPECT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows.sizes(), (std::vector<std::size_t>{3, 0, 2}));
  EXPECT_EQ(rows.row(2).value(), "2 of 3");
  EXPECT_EQ(rows.row(3).value(), "0 of 2");
  EXPECT_EQ(rows.row(4).value(), "1 of 2");
  EXPECT_EQ(rows.where(4), "row 1 of 2.jsonl");
  EXPECT_FALSE(rows.row(5).ok());
}

}  // namespace
}  // namespace neap::data

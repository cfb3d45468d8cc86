// Blocks that rest on disk or in model files come to slots, on devices and disks that fail.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "unit/arena/disk_system.h"
#include "unit/bridge/slots.h"

namespace neap::bridge {
namespace {

using testing::the_system;

class DiskBlocks : public ::testing::TestWithParam<Rests> {};
INSTANTIATE_TEST_SUITE_P(OfTheRunAndOfOthers, DiskBlocks,
                         ::testing::Values(Rests::kDisk, Rests::kFiles));

// Blocks with gradients on disk: the k-th read or write fails, for every k.
TEST_P(DiskBlocks, EveryReadAndWriteMayFail) {
  for (auto* failing : {&the_system.failing_read, &the_system.failing_write}) {
    int failed = 0;
    for (std::int64_t k = 1;; ++k) {
      SCOPED_TRACE(format("call {}", k));
      the_system.reset(::testing::TempDir());
      Blocks b(4, {0, 1}, GetParam(), ::testing::TempDir());
      *failing = k;
      bool threw = false;
      try {
        b.mini_batch(2);
      } catch (const Error& e) {
        EXPECT_EQ(e.status().code(), ErrorCode::kIo);
        threw = true;
      }
      const bool met = *failing <= 0;
      *failing = 0;
      ASSERT_EQ(threw, met);
      if (!met) break;
      ++failed;
      (void)b.streamed->close();
      ASSERT_NO_FATAL_FAILURE(b.mini_batch(2));
      for (const std::uint64_t w : b.gradients(3)) ASSERT_EQ(w, 8U);
    }
    EXPECT_GT(failed, 5);
  }
}

TEST_P(DiskBlocks, AnySystemWillDo) {
  for (auto* answer :
       {&the_system.signals, &the_system.short_transfers, &the_system.direct_refused}) {
    the_system.reset(::testing::TempDir());
    Blocks b(4, {0, 1}, GetParam(), ::testing::TempDir());
    *answer = true;
    ASSERT_NO_FATAL_FAILURE(b.mini_batch(2));
    EXPECT_TRUE(the_system.met > 0 || answer != &the_system.signals);
    for (const std::uint64_t w : b.gradients(3)) ASSERT_EQ(w, 8U);
  }
  the_system.reset(::testing::TempDir());
}

// The file that weights are read from, by its name.
void expect_fails(Blocks& b, const std::string& why) {
  try {
    b.mini_batch(1);
    ADD_FAILURE() << "it did not fail";
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), ErrorCode::kCorrupt);
    EXPECT_NE(e.status().message().find("model.safetensors"), std::string::npos);
    EXPECT_NE(e.status().message().find(why), std::string::npos) << e.status().message();
  }
  (void)b.streamed->close();
}

TEST(BlocksInFiles, AFileThatIsCutShortIsAnError) {
  the_system.reset(::testing::TempDir());
  for (const off_t left : {0, 1, 4096, 4097, 16384}) {
    Blocks b(4, {}, Rests::kFiles, ::testing::TempDir());
    ASSERT_NO_FATAL_FAILURE(b.mini_batch(1));
    // Within a phase, where nobody asks whether it is the same.
    throw_if_error(b.streamed->open());
    ASSERT_EQ(::ftruncate(b.descriptor.get(), left), 0);
    std::vector<SlotPart> parts(b.slots.parts().begin(), b.slots.parts().begin() + 4);
    Status gathered;
    for (std::size_t i = 0; gathered.ok() && i < 4; ++i)
      gathered = b.streamed->bring_to_generate(i, parts[i]);
    EXPECT_EQ(gathered.code(), ErrorCode::kCorrupt);
    EXPECT_NE(gathered.message().find("model.safetensors ends at byte"), std::string::npos)
        << gathered.message();
    (void)b.streamed->close();
    expect_fails(b, "was changed while it was in use");
  }
}

TEST(BlocksInFiles, AFileThatIsWrittenIsAnError) {
  the_system.reset(::testing::TempDir());
  Blocks b(4, {}, Rests::kFiles, ::testing::TempDir());
  ASSERT_NO_FATAL_FAILURE(b.mini_batch(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // of the file's clock
  ASSERT_EQ(::pwrite(b.descriptor.get(), "x", 1, 0), 1);
  expect_fails(b, "was changed while it was in use");
}

TEST(BlocksInFiles, NoBlockMayNeedALargerWindow) {
  Blocks b(4, {}, Rests::kFiles, ::testing::TempDir());
  const std::shared_ptr<const arena::DiskFile> file =
      value_or_throw(arena::DiskFile::of_other(b.descriptor.get(), "model.safetensors"));
  std::vector<FileUnit> units(4);
  units[3].parts = {{file.get(), Bytes(), 4 * bytes_of(Blocks::kWords) + 1_B}};
  EXPECT_FALSE(b.streamed->read_from(units, {}, {file}).ok());
  ASSERT_NO_FATAL_FAILURE(b.mini_batch(1));
}

// Of the table a matrix with rows of three words, of which a few are read, some twice.
TEST(BlocksInFiles, RowsOfATableAreRead) {
  the_system.reset(::testing::TempDir());
  Blocks b(4, {0, 1}, Rests::kFiles, ::testing::TempDir());
  const auto numbers = [&](std::uint64_t first) {
    std::vector<std::uint64_t> out(300);
    std::iota(out.begin(), out.end(), first);
    return out;
  };
  const std::vector<std::uint64_t> words = numbers(0);
  ASSERT_EQ(::pwrite(b.descriptor.get(), words.data(), 2400, 3), 2400);
  const std::shared_ptr<const arena::DiskFile> file =
      value_or_throw(arena::DiskFile::of_other(b.descriptor.get(), "model.safetensors"));
  std::vector<FileUnit> tables(2);
  for (FileUnit& table : tables) table.parts = {{file.get(), 3_B, 2400_B}};
  throw_if_error(b.streamed->read_from(std::vector<FileUnit>(4), tables, {file}));
  ASSERT_TRUE(b.streamed->reads_rows());
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 150; ++i) rows.push_back(i * 37 % 100);
  std::vector<std::uint64_t> got(3 * rows.size());
  b.streamed->read_rows(rows, 24_B, reinterpret_cast<std::byte*>(got.data()));
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], static_cast<std::uint64_t>(3 * rows[i / 3]) + i % 3);
  EXPECT_EQ(of(value_or_throw(b.streamed->take_use()), Kind::kWeights).disk_read, 24_B * 150);
  for (const std::int64_t row : {std::int64_t{-1}, std::int64_t{100}, INT64_MAX})
    EXPECT_THROW(b.streamed->read_rows({&row, 1}, 24_B, reinterpret_cast<std::byte*>(got.data())),
                 Error);
  the_system.failing_read = 1;
  EXPECT_THROW(b.streamed->read_rows(rows, 24_B, reinterpret_cast<std::byte*>(got.data())), Error);
}

}  // namespace
}  // namespace neap::bridge

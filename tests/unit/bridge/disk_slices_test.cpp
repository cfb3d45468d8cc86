// Slices that rest on disk come to slots, read ahead or not, on disks that fail.
#include "bridge/streamed_slices.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <optional>
#include <thread>

#include "unit/arena/disk_system.h"
#include "unit/bridge/slots.h"

namespace neap::bridge {
namespace {

using testing::the_system;

// Word i of the slice is i. Ranges of it begin and end within pages.
class DiskSlices : public ::testing::Test {
 protected:
  static constexpr std::size_t kWords = 700, kSlots = 3, kRanges = 5;
  void SetUp() override { the_system.reset(::testing::TempDir()); }
  void make(Kind kind) {
    slices_.reset();
    slots_.emplace(kSlots, kWords, ::testing::TempDir());
    slices_.emplace(slots_->arena(), device::StreamId::kDefault, "slices", slots_->parts(),
                    bytes_of(kRanges * kWords), kind, 16_KiB);
    std::iota(slice().begin(), slice().end(), 0);
    throw_if_error(slices_->open());
  }
  [[nodiscard]] Words slice() const {
    return {reinterpret_cast<std::uint64_t*>(slices_->slice().disk->data()), kRanges * kWords};
  }
  static StreamedSlices::Range range(std::size_t i) {
    return {bytes_of(i * kWords), bytes_of(kWords), Bytes()};
  }
  [[nodiscard]] bool holds(std::size_t slot, std::size_t i, std::uint64_t more = 0) {
    throw_if_error(slices_->wait_for_slot(slot));
    for (std::size_t w = 0; w < kWords; ++w)
      if (slots_->words(slot)[w] != i * kWords + w + more) return false;
    return true;
  }
  // Uses blocks as a pass does: they alternate between two slots, each is read while the previous one is in use, and
  // the tables' slot comes last. Twice, the block that was read ahead is not the one that is fetched.
  Status pass() {
    for (const std::size_t i : {0u, 1u, 2u, 3u, 4u, 3u, 2u, 2u}) {
      NEAP_TRY(slices_->begin_after_work());
      NEAP_TRY(slices_->fetch(i % 2, range(i)));
      NEAP_TRY(slices_->read_ahead(range(i == 4 ? 3 : (i + 1) % kRanges)));
      EXPECT_TRUE(holds(i % 2, i));
    }
    NEAP_TRY(slices_->fetch(2, range(1)));
    EXPECT_TRUE(holds(2, 1));
    return slices_->close();
  }
  std::optional<Slots> slots_;
  std::optional<StreamedSlices> slices_;
};

TEST_F(DiskSlices, ReadAheadOrNotTheRangeComes) {
  make(Kind::kWeights);
  for (int round = 0; round < 3; ++round) {
    const Status done = pass();
    ASSERT_TRUE(done.ok()) << done.message();
  }
  const LinkUses use = value_or_throw(slices_->take_use());
  EXPECT_EQ(of(use, Kind::kWeights).to_device, 27 * bytes_of(kWords));
  EXPECT_EQ(of(use, Kind::kWeights).disk_read, of(use, Kind::kWeights).to_device);
}

TEST_F(DiskSlices, ARangeIsReadBeforeItIsFetched) {
  make(Kind::kWeights);
  throw_if_error(slices_->fetch(0, range(0)));
  the_system.failing_read = 1;
  throw_if_error(slices_->read_ahead(range(1)));
  for (int i = 0; i < 1000 && the_system.failing_read > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_LE(the_system.failing_read, 0) << "nobody reads";
  EXPECT_TRUE(holds(0, 0));
  EXPECT_EQ(slices_->fetch(1, range(1)).code(), ErrorCode::kIo);
  (void)slices_->close();
  EXPECT_TRUE(pass().ok());
}

TEST_F(DiskSlices, WhatWasReadAheadIsForgottenWhenItChanges) {
  make(Kind::kWeights);
  throw_if_error(slices_->fetch(0, range(0)));
  throw_if_error(slices_->read_ahead(range(1)));
  throw_if_error(slices_->forget_ahead());
  slice()[kWords] = 7777;
  throw_if_error(slices_->slice().disk->settle());
  throw_if_error(slices_->fetch(1, range(1)));
  throw_if_error(slices_->wait_for_slot(1));
  throw_if_error(slices_->close());
  EXPECT_EQ(slots_->words(1)[0], 7777U);
}

TEST_F(DiskSlices, EveryReadMayFail) {
  int failed = 0;
  for (std::int64_t k = 1;; ++k) {
    SCOPED_TRACE(format("read {}", k));
    make(Kind::kWeights);
    the_system.failing_read = k;
    const Status done = pass();
    const bool met = the_system.failing_read <= 0;
    the_system.failing_read = 0;
    if (!met) break;
    // Nobody needs a range that was read ahead in vain.
    if (done.ok()) continue;
    EXPECT_EQ(done.code(), ErrorCode::kIo);
    ++failed;
    (void)slices_->close();
    EXPECT_TRUE(pass().ok());
  }
  EXPECT_GT(failed, 5);
}

TEST_F(DiskSlices, GradientsComeLeaveAndComeAgain) {
  make(Kind::kGradients);
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < kRanges; ++i) {
      const std::size_t slot = i % 2;
      throw_if_error(slices_->begin_after_work());
      throw_if_error(slices_->begin(slot, range(i)));
      throw_if_error(slices_->arrive(slot));
      ASSERT_TRUE(holds(slot, i, round));
      for (std::uint64_t& word : slots_->words(slot)) ++word;
      throw_if_error(slices_->begin_after_work());
      throw_if_error(slices_->store(slot, range(i)));
      throw_if_error(slices_->arrive(slot));  // nothing
    }
  }
  throw_if_error(slices_->close());
  const LinkUses use = value_or_throw(slices_->take_use());
  const Bytes all = 3 * kRanges * bytes_of(kWords);
  EXPECT_EQ(of(use, Kind::kGradients).disk_read, all);
  EXPECT_EQ(of(use, Kind::kGradients).disk_written, all);
  for (std::size_t w = 0; w < kRanges * kWords; ++w) ASSERT_EQ(slice()[w], w + 3);
}

}  // namespace
}  // namespace neap::bridge

// What rests on disk comes to slots and goes back, on devices and disks that fail: optimizer states, blocks, slices.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bridge/streamed_slices.h"
#include "bridge/streamed_states.h"
#include "device/fault/fault_device.h"
#include "step/units/update_parts.h"
#include "unit/arena/disk_system.h"
#include "unit/bridge/slots.h"

namespace neap::bridge {
namespace {

using testing::the_system;

constexpr std::uint64_t kPart = 1000;  // words, so that most parts begin and end within pages

// Units in parts, with states on disk and gradients, which are only fetched, on the host.
class DiskStates : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "neap-states-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    the_system.reset(folder_);
    real_ = host_device(64_MiB);
    fault_ = device::make_fault_device(*real_);
    arena::Options options;
    options.touch_threads = 1;
    options.disk_folder = folder_;
    arena_ = value_or_throw(arena::Arena::make(*fault_, options));
    const Bytes slot = bytes_of(2 * kPart);
    region_ =
        value_or_throw(arena_->create("slots", slot * step::kUpdateSlots, arena::Policy::kDiscard));
    std::vector<SlotPart> slots;
    for (std::size_t i = 0; i < step::kUpdateSlots; ++i)
      slots.push_back({format("slot.{}", i), region_.id, slot * i});
    std::vector<Bytes> units;
    for (std::size_t u = 0; u < kUnits.size(); ++u) {
      units.push_back(bytes_of(kUnits[u]));
      gradients_.push_back(
          value_or_throw(arena::HostStorage::make(*arena_, "slots", units.back())));
      for (std::uint64_t first = 0; first < kUnits[u]; first += kPart)
        parts_.push_back({u, first, std::min(kPart, kUnits[u] - first)});
    }
    states_.emplace(*arena_, device::StreamId::kDefault, "states", std::move(slots), units,
                    round_up(bytes_of(kPart), step::kWindowPage) + step::kWindowPage);
    load();
  }
  void TearDown() override {
    fault_->arm({});
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
    states_.reset();
    gradients_.clear();
    arena_.reset();
    ::rmdir(folder_.c_str());
  }
  static std::uint64_t* words_of(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }
  [[nodiscard]] std::uint64_t* state(std::size_t unit) const {
    return words_of(states_->states(unit).data());
  }
  /// As a checkpoint does.
  void load() {
    for (std::size_t u = 0; u < kUnits.size(); ++u) {
      for (std::uint64_t w = 0; w < kUnits[u]; ++w) {
        state(u)[w] = value(u, w, 0);
        words_of(gradients_[u]->data())[w] = value(u, w, 7);
      }
    }
  }
  static std::uint64_t value(std::size_t unit, std::uint64_t word, std::uint64_t round) {
    return (unit << 40) + (word << 8) + round;
  }
  /// Adds one to every state.
  void step(std::uint64_t round) {
    const auto copies = [&](std::size_t i) {
      const Part& part = parts_[i];
      const Bytes first = bytes_of(part.first), size = bytes_of(part.count);
      const Bytes in_page = first - round_down(first, step::kWindowPage);
      return std::vector<StreamedStates::Copy>{
          {{gradients_[part.unit].get()},
           step::StreamedKind::kGradients,
           first,
           bytes_of(kPart),
           size,
           true,
           false},
          {states_->states(part.unit), step::StreamedKind::kStates, first, Bytes(), size, true,
           true, in_page}};
    };
    visited_ = 0;
    states_->for_each(parts_.size(), copies, [&](std::size_t i, std::size_t slot) {
      ASSERT_EQ(i, visited_++);
      const Part& part = parts_[i];
      // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are known by address
      auto* const words = reinterpret_cast<std::uint64_t*>(region_.address) + slot * 2 * kPart;
      for (std::uint64_t w = 0; w < part.count; ++w) {
        ASSERT_EQ(words[w], value(part.unit, part.first + w, round)) << i << " " << w;
        ASSERT_EQ(words[kPart + w], value(part.unit, part.first + w, 7));
        ++words[w];
      }
    });
  }
  void expect_stepped(std::uint64_t rounds) const {
    for (std::size_t u = 0; u < kUnits.size(); ++u)
      for (std::uint64_t w = 0; w < kUnits[u]; ++w)
        ASSERT_EQ(state(u)[w], value(u, w, rounds)) << u << " " << w;
  }
  /// The k-th call of `failing` fails, for every k: one error each time, and afterwards all is well.
  template <class Arm, class Fired>
  void expect_errors(const Arm& arm, const Fired& fired, ErrorCode code) {
    int failed = 0;
    for (std::uint64_t k = 1;; ++k) {
      SCOPED_TRACE(format("call {}", k));
      load();
      arm(k);
      bool threw = false;
      try {
        step(0);
      } catch (const Error& e) {
        EXPECT_EQ(e.status().code(), code);
        threw = true;
      }
      const bool met = fired();
      arm(0);
      if (!met) break;
      failed += threw;
      EXPECT_TRUE(threw || visited_ == parts_.size());
      const std::vector<std::string> tags = {"slots"};
      ASSERT_TRUE(arena_->pause(tags).ok());  // nothing is under way
      ASSERT_TRUE(arena_->resume(tags).ok());
      load();
      ASSERT_NO_FATAL_FAILURE(step(0));
      ASSERT_NO_FATAL_FAILURE(expect_stepped(1));
    }
    EXPECT_GT(failed, 10);
  }

  struct Part {
    std::size_t unit;
    std::uint64_t first, count;
  };
  static constexpr std::array<std::uint64_t, 3> kUnits = {7300, 64, 5130};
  std::string folder_;
  std::unique_ptr<device::HostDevice> real_;
  std::unique_ptr<device::FaultDevice> fault_;
  std::unique_ptr<arena::Arena> arena_;
  arena::RegionInfo region_;
  std::vector<std::unique_ptr<arena::HostStorage>> gradients_;
  std::optional<StreamedStates> states_;
  std::vector<Part> parts_;
  std::size_t visited_ = 0;
};

TEST_F(DiskStates, EveryPartIsSteppedAndGoesBack) {
  for (std::uint64_t round = 0; round < 5; ++round) ASSERT_NO_FATAL_FAILURE(step(round));
  expect_stepped(5);
  const Bytes all = bytes_of(7300 + 64 + 5130);
  const LinkUse use = value_or_throw(states_->take_use())[index_of(step::StreamedKind::kStates)];
  EXPECT_EQ(use.to_device, all * 5);
  EXPECT_EQ(use.to_host, all * 5);
  EXPECT_EQ(use.disk_read, all * 5);
  EXPECT_EQ(use.disk_written, all * 5);
  EXPECT_GT(use.disk_seconds, 0);
  EXPECT_TRUE(value_or_throw(states_->take_use())[index_of(step::StreamedKind::kStates)]
                  .disk_read.is_zero());
}

TEST_F(DiskStates, LoadingAndUpdatesTakeTurns) {
  for (int turn = 0; turn < 3; ++turn) {
    load();
    ASSERT_NO_FATAL_FAILURE(step(0));
    ASSERT_NO_FATAL_FAILURE(expect_stepped(1));
    ASSERT_NO_FATAL_FAILURE(step(1));
    ASSERT_NO_FATAL_FAILURE(expect_stepped(2));
  }
}

TEST_F(DiskStates, EveryReadMayFail) {
  expect_errors([](std::uint64_t k) { the_system.failing_read = static_cast<std::int64_t>(k); },
                [] { return the_system.failing_read <= 0; }, ErrorCode::kIo);
}

TEST_F(DiskStates, EveryWriteMayFail) {
  expect_errors([](std::uint64_t k) { the_system.failing_write = static_cast<std::int64_t>(k); },
                [] { return the_system.failing_write <= 0; }, ErrorCode::kIo);
}

TEST_F(DiskStates, EveryDeviceCallMayFail) {
  expect_errors(
      [&](std::uint64_t k) {
        fault_->arm(k > 0 ? device::FaultPlan{k, std::nullopt, ErrorCode::kDriver, false}
                          : device::FaultPlan{});
      },
      [&] { return fault_->fired(); }, ErrorCode::kDriver);
}

TEST_F(DiskStates, AStepThatThrowsLeavesNothingUnderWay) {
  const auto copies = [&](std::size_t) {
    return std::vector<StreamedStates::Copy>{
        {states_->states(1), step::StreamedKind::kStates, Bytes(), Bytes(), bytes_of(64)}};
  };
  EXPECT_THROW(states_->for_each(5, copies,
                                 [](std::size_t i, std::size_t) {
                                   if (i == 2) throw std::runtime_error("stop");
                                 }),
               std::runtime_error);
  const std::vector<std::string> tags = {"slots"};
  EXPECT_TRUE(arena_->pause(tags).ok());
}

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

// ---- slices ------------------------------------------------------------------------------------

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
  // As blocks are used: in two slots by turns, each read while the one before is there; then the tables' slot. Of two
  // another one is read ahead than is fetched.
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
  EXPECT_EQ(of(use, Kind::kWeights).to_device, 3 * 9 * bytes_of(kWords));
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

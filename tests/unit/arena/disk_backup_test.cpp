// Backups and storage in files over a system that answers as it may.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_storage.h"
#include "arena/host_storage.h"
#include "device/host/host_device.h"
#include "unit/arena/disk_system.h"

namespace neap::arena {
namespace {

using testing::the_system;

class DiskBackup : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "neap-disk-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    the_system.reset(folder_);
    Options options;
    options.disk_folder = folder_;
    device_ = std::move(device::make_host_device({})).value();
    arena_ = std::move(Arena::make(*device_, options)).value();
  }
  void TearDown() override {
    arena_.reset();
    ::rmdir(folder_.c_str());
  }
  RegionInfo make(Bytes size) {
    const RegionInfo region = std::move(arena_->create("disk", size, Policy::kDisk)).value();
    for (std::uint64_t i = 0; i < region.size.count(); i += sizeof i)
      *reinterpret_cast<std::uint64_t*>(region.address + i) = i * 0x9e3779b97f4a7c15u;
    return region;
  }
  static bool intact(const RegionInfo& region) {
    for (std::uint64_t i = 0; i < region.size.count(); i += sizeof i)
      if (*reinterpret_cast<const std::uint64_t*>(region.address + i) != i * 0x9e3779b97f4a7c15u)
        return false;
    return true;
  }
  /// There and back; the contents are the same.
  void cycle() {
    const RegionInfo region = make(6_MiB);
    const auto left = arena_->pause({});
    ASSERT_TRUE(left.ok()) << left.status().message();
    const auto came = arena_->resume({});
    ASSERT_TRUE(came.ok()) << came.status().message();
    EXPECT_TRUE(intact(region));
  }

  std::string folder_;
  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(DiskBackup, SignalsAreNoFailure) {
  the_system.signals = true;
  cycle();
  EXPECT_GT(the_system.met, 0);
}

TEST_F(DiskBackup, ShortTransfersGoOn) {
  the_system.short_transfers = true;
  cycle();
  EXPECT_GT(the_system.met, 0);
}

TEST_F(DiskBackup, FileSystemsWithoutReservingWork) {
  cycle();
  const bool direct = the_system.was_direct;
  the_system.no_fallocate = true;
  the_system.was_direct = false;
  cycle();
  EXPECT_GT(the_system.met, 0);
  EXPECT_EQ(the_system.was_direct, direct) << "writes go past the cache as elsewhere";
}

TEST_F(DiskBackup, DirectTransfersRefusedLateGoThroughTheCache) {
  cycle();
  if (!the_system.was_direct)
    GTEST_SKIP() << ::testing::TempDir() << " lies on a file system without O_DIRECT";
  the_system.direct_refused = true;
  cycle();
  EXPECT_GT(the_system.met, 0);
  EXPECT_FALSE(the_system.was_direct);
}

TEST_F(DiskBackup, AFullDiskIsFoundBeforeAnythingMoves) {
  const RegionInfo region = make(6_MiB);
  the_system.reserved = 4 << 20;
  const auto left = arena_->pause({});
  ASSERT_FALSE(left.ok());
  EXPECT_EQ(left.status().code(), ErrorCode::kIo);
  EXPECT_EQ(left.status().native_code(), ENOSPC);
  EXPECT_TRUE(intact(region));
  EXPECT_TRUE(arena_->stats().tags.front().disk.is_zero());
}

TEST_F(DiskBackup, ADiskThatFillsUpMeanwhileLeavesAllAsItWas) {
  const RegionInfo region = make(6_MiB);
  the_system.room = 3 << 20;
  const auto left = arena_->pause({});
  ASSERT_FALSE(left.ok());
  EXPECT_EQ(left.status().code(), ErrorCode::kIo);
  EXPECT_TRUE(intact(region));
  the_system.room = -1;
  ASSERT_TRUE(arena_->pause({}).ok());
  ASSERT_TRUE(arena_->resume({}).ok());
  EXPECT_TRUE(intact(region));
}

// A file system takes long to close a large file: nobody waits for it, and no lock is held.
TEST_F(DiskBackup, ClosingGoesOnBesideTheCaller) {
  const auto timed = [](auto&& act) {
    const auto begin = std::chrono::steady_clock::now();
    act();
    return std::chrono::steady_clock::now() - begin;
  };
  const auto wait_for = [](const std::atomic<int>& count, int wanted) {
    for (int i = 0; i < 600 && count < wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(count, wanted);
  };
  const RegionInfo destroyed = make(2_MiB);
  ASSERT_TRUE(arena_->pause({}).ok());
  the_system.slow_close = true;
  EXPECT_LT(timed([&] { EXPECT_TRUE(arena_->destroy(destroyed.id).ok()); }),
            std::chrono::milliseconds(2000));
  wait_for(the_system.closes_begun, 1);
  the_system.slow_close = false;
  const RegionInfo shrunk = make(2_MiB);
  ASSERT_TRUE(arena_->pause({}).ok());
  ASSERT_TRUE(arena_->shrink(shrunk.id, Bytes(0), 2_MiB).ok());
  wait_for(the_system.closes_done, 1);
  the_system.slow_close = true;
  EXPECT_LT(timed([&] { EXPECT_TRUE(arena_->resume({}).ok()); }), std::chrono::milliseconds(2000));
  // Not waited for, and not forgotten.
  wait_for(the_system.closes_done, 2);
}

class NamedDiskBackup : public DiskBackup {
 protected:
  void SetUp() override {
    DiskBackup::SetUp();
    open();
  }
  void open() {
    Options options;
    options.disk_folder = folder_;
    options.named_disk_files = true;
    arena_.reset();
    arena_ = std::move(Arena::make(*device_, options)).value();
  }
  std::map<std::string, std::uintmax_t> files() const {
    std::map<std::string, std::uintmax_t> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.emplace(entry.path().filename(), entry.file_size());
    return found;
  }
};

TEST_F(NamedDiskBackup, EveryRegionHasAFileForItsLife) {
  const RegionInfo large = make(6_MiB);
  const RegionInfo small = make(2_MiB);
  EXPECT_TRUE(files().empty());
  std::map<std::string, std::uintmax_t> first;
  for (int cycle = 0; cycle < 3; ++cycle) {
    ASSERT_TRUE(arena_->pause({}).ok());
    const auto now = files();
    ASSERT_EQ(now.size(), 2u);
    EXPECT_EQ(now.begin()->second + now.rbegin()->second, 8u << 20);
    if (cycle == 0) first = now;
    EXPECT_EQ(now, first);
    ASSERT_TRUE(arena_->resume({}).ok());
    EXPECT_TRUE(intact(large) && intact(small));
  }
  ASSERT_TRUE(arena_->destroy(small.id).ok());
  arena_->finish_disk_files();
  EXPECT_TRUE(files().empty());
  ASSERT_TRUE(arena_->pause({}).ok());
  ASSERT_TRUE(arena_->resume({}).ok());
  EXPECT_TRUE(intact(large)) << "a file without a name still serves";
}

TEST_F(NamedDiskBackup, FilesOfKilledProcessesAreRemoved) {
  // The folder is new to this process: it looks once for each.
  folder_ += "/sub";
  ASSERT_EQ(::mkdir(folder_.c_str(), 0700), 0);
  const std::string dead = folder_ + "/neap-backup-killed", live = folder_ + "/neap-backup-living",
                    other = folder_ + "/other";
  for (const std::string& path : {dead, live, other}) std::ofstream(path) << "contents";
  const int held = ::open(live.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  open();
  make(2_MiB);
  ASSERT_TRUE(arena_->pause({}).ok());
  const auto now = files();
  EXPECT_FALSE(now.contains("neap-backup-killed"));
  EXPECT_TRUE(now.contains("neap-backup-living"));
  EXPECT_TRUE(now.contains("other"));
  ::close(held);
  arena_.reset();
  EXPECT_EQ(files().size(), 2u) << "a region's file goes with the region";
  std::filesystem::remove_all(folder_);
  folder_.resize(folder_.size() - 4);
}

TEST_F(NamedDiskBackup, AFullDiskLeavesNoFile) {
  const RegionInfo region = make(6_MiB);
  the_system.no_room = true;
  EXPECT_FALSE(arena_->pause({}).ok());
  the_system.no_room = false;
  EXPECT_TRUE(files().empty());
  EXPECT_TRUE(intact(region));
}

// ---- storage -----------------------------------------------------------------------------------

class DiskStorages : public DiskBackup {
 protected:
  static constexpr Bytes kSize = 5_MiB + 300_B;
  void SetUp() override {
    DiskBackup::SetUp();
    storage_ = value_or_throw(DiskStorage::make(*arena_, "states", kSize));
    window_ = value_or_throw(HostStorage::make(*arena_, "states", 4_MiB));
  }
  void TearDown() override {
    storage_.reset();
    window_.reset();
    DiskBackup::TearDown();
  }
  /// Of the storage, in memory that lies in its page as the range does.
  [[nodiscard]] DiskRange range(Bytes offset, Bytes size) const {
    const Bytes in_page = offset - round_down(offset, DiskFile::kPage);
    return {&storage_->file(), offset, window_->data() + (DiskFile::kPage + in_page).count(), size};
  }
  static std::byte value_of(std::uint64_t at, int round) {
    return static_cast<std::byte>((at * 0x9e3779b97f4a7c15u >> 32) + static_cast<unsigned>(round));
  }
  [[nodiscard]] bool holds(const DiskRange& range, int round) const {
    for (std::uint64_t i = 0; i < range.size.count(); ++i)
      if (range.memory[i] != value_of(range.offset.count() + i, round)) return false;
    return true;
  }
  static void fill(const DiskRange& range, int round) {
    for (std::uint64_t i = 0; i < range.size.count(); ++i)
      range.memory[i] = value_of(range.offset.count() + i, round);
  }
  void load() const {
    for (std::uint64_t i = 0; i < kSize.count(); ++i) storage_->data()[i] = value_of(i, 0);
    ASSERT_TRUE(storage_->settle().ok());
  }
  /// Ranges come and go, none beginning or ending with a page; those between stay.
  void cycle() {
    load();
    DiskLane lane;
    const std::vector<std::pair<Bytes, Bytes>> ranges = {
        {256_B, 2_MiB}, {2_MiB + 512_B, 100_B}, {3_MiB - 256_B, 2_MiB + 556_B}, {4096_B, 8192_B}};
    std::vector<int> rounds(kSize.count(), 0);
    for (int round = 1; round < 3; ++round) {
      for (const auto& [offset, size] : ranges) {
        const DiskRange part = range(offset, size);
        Status done = lane.read({&part, 1}).wait();
        ASSERT_TRUE(done.ok()) << done.message();
        for (std::uint64_t i = 0; i < size.count(); ++i) {
          const std::uint64_t at = offset.count() + i;
          ASSERT_EQ(part.memory[i], value_of(at, rounds[at])) << at;
          rounds[at] = round;
        }
        fill(part, round);
        done = lane.write({&part, 1}).wait();
        ASSERT_TRUE(done.ok()) << done.message();
      }
    }
    for (std::uint64_t i = 0; i < kSize.count(); ++i)
      ASSERT_EQ(storage_->data()[i], value_of(i, rounds[i])) << i;
  }
  std::unique_ptr<DiskStorage> storage_;
  std::unique_ptr<HostStorage> window_;
};

TEST_F(DiskStorages, RangesThatEndWithinPagesComeAndGo) {
  EXPECT_EQ(arena_->stats().tags.front().disk, kSize);
  cycle();
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "the file has no name";
}

TEST_F(DiskStorages, SignalsAndShortTransfersAreNoFailure) {
  the_system.signals = the_system.short_transfers = true;
  cycle();
  EXPECT_GT(the_system.met, 0);
}

TEST_F(DiskStorages, DirectTransfersRefusedLateGoThroughTheCache) {
  the_system.direct_refused = true;
  cycle();
}

TEST_F(DiskStorages, AFullDiskIsFoundWhenItIsMade) {
  the_system.reserved = 4 << 20;
  const auto made = DiskStorage::make(*arena_, "more", kSize);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), ErrorCode::kIo);
  EXPECT_EQ(made.status().native_code(), ENOSPC);
  EXPECT_NE(made.status().message().find("disk storage for more"), std::string::npos);
}

TEST_F(DiskStorages, EveryReadAndWriteMayFail) {
  load();
  const DiskRange part = range(256_B, 3_MiB);
  DiskLane lane;
  for (const bool reads : {true, false}) {
    auto& failing = reads ? the_system.failing_read : the_system.failing_write;
    int failed = 0;
    for (std::int64_t k = 1;; ++k) {
      fill(part, 0);
      failing = k;
      const Status done = reads ? lane.read({&part, 1}).wait() : lane.write({&part, 1}).wait();
      const bool met = failing <= 0;
      failing = 0;
      ASSERT_EQ(done.ok(), !met) << k;
      if (!met) break;
      ++failed;
      EXPECT_EQ(done.code(), ErrorCode::kIo);
      EXPECT_EQ(done.native_code(), EIO);
    }
    EXPECT_GT(failed, 2) << (reads ? "reads" : "writes");
  }
  // The contents are what they were.
  ASSERT_TRUE(lane.read({&part, 1}).wait().ok());
  EXPECT_TRUE(holds(part, 0));
}

}  // namespace
}  // namespace neap::arena

// Backups in files over a system that answers as it may: signals, short transfers, full disks, file
// systems without this or that, slow closing. The calls below stand in front of the C library's.
#include "arena/disk_backup.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "arena/arena.h"
#include "device/host/host_device.h"

namespace {

/// How the system behaves; reset by every test.
struct System {
  std::atomic<bool> signals{false};  // three of four calls are interrupted
  std::atomic<bool> short_transfers{false};
  std::atomic<bool> no_fallocate{false};
  std::atomic<bool> direct_refused{false};  // at the transfer, not at open
  std::atomic<std::int64_t> room{-1};       // bytes that can be written; -1: no limit
  std::atomic<std::int64_t> reserved{-1};   // most that a file may reserve; -1: no limit
  std::atomic<bool> slow_close{false};
  std::atomic<bool> no_room{false};  // for named files, too
  std::atomic<std::uint64_t> calls{0};
  std::atomic<bool> was_direct{false};
  /// How often a backup's call met what the test asked for: a test that meets nothing shows nothing.
  std::atomic<int> met{0};
  std::atomic<int> closes_begun{0}, closes_done{0};  // slow ones
  dev_t folder = 0;
};
System the_system;

bool interrupted() {
  if (!the_system.signals || the_system.calls.fetch_add(1) % 4 == 3) return false;
  ++the_system.met;
  return true;
}
// A transfer moves a part.
std::size_t shortened(std::size_t size) {
  if (!the_system.short_transfers || size <= 4096) return size;
  ++the_system.met;
  return 4096 + (size / 3 & ~std::size_t{4095});
}
bool refuses_direct(int fd) {
  if (!the_system.direct_refused || (::fcntl(fd, F_GETFL) & O_DIRECT) == 0) return false;
  ++the_system.met;
  return true;
}
int fail(int error) {
  errno = error;
  return -1;
}
bool is_direct(int fd) {
  return (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}
bool is_backup(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 &&
         status.st_dev == the_system.folder;
}

}  // namespace

extern "C" {

int fallocate(int fd, int mode, off_t offset, off_t length) noexcept(false) {
  if (the_system.no_room) return fail(ENOSPC);
  if (is_backup(fd)) {
    if (interrupted()) return fail(EINTR);
    if (the_system.no_fallocate) {
      ++the_system.met;
      return fail(EOPNOTSUPP);
    }
    if (the_system.reserved >= 0 && offset + length > the_system.reserved) return fail(ENOSPC);
  }
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, length));
}

int posix_fallocate(int fd, off_t, off_t length) noexcept(false) {
  // What the library's own does without the system's help: a byte to every block.
  if (is_direct(fd)) return EINVAL;
  return ::ftruncate(fd, length) == 0 ? 0 : errno;
}

ssize_t pwrite(int fd, const void* from, size_t size, off_t offset) {
  if (is_backup(fd)) {
    the_system.was_direct = is_direct(fd);
    if (interrupted()) return fail(EINTR);
    if (refuses_direct(fd)) return fail(EINVAL);
    size = shortened(size);
    if (the_system.room >= 0) {
      if (the_system.room == 0) return fail(ENOSPC);
      the_system.room =
          std::max<std::int64_t>(0, the_system.room - static_cast<std::int64_t>(size));
    }
  }
  return ::syscall(SYS_pwrite64, fd, from, size, offset);
}

ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  if (is_backup(fd)) {
    if (interrupted()) return fail(EINTR);
    if (refuses_direct(fd)) return fail(EINVAL);
    size = shortened(size);
  }
  return ::syscall(SYS_pread64, fd, to, size, offset);
}

int close(int fd) {
  const bool slow = the_system.slow_close && is_backup(fd);
  if (slow) ++the_system.closes_begun;
  if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
  const int result = static_cast<int>(::syscall(SYS_close, fd));
  if (slow) ++the_system.closes_done;
  return result;
}

}  // extern "C"

namespace neap::arena {
namespace {

class DiskBackup : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "neap-disk-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    struct stat status {};
    ASSERT_EQ(::stat(folder_.c_str(), &status), 0);
    the_system.signals = the_system.short_transfers = the_system.no_fallocate = false;
    the_system.direct_refused = the_system.slow_close = the_system.was_direct = false;
    the_system.room = the_system.reserved = -1;
    the_system.met = the_system.closes_begun = the_system.closes_done = 0;
    the_system.folder = status.st_dev;
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
    GTEST_SKIP() << testing::TempDir() << " lies on a file system without O_DIRECT";
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

}  // namespace
}  // namespace neap::arena

// Host memory of backups: when it goes back to the system, and what stays readable until then.
#include <gtest/gtest.h>

#include <charconv>
#include <chrono>
#include <fstream>
#include <string>

#include "arena/arena.h"
#include "conformance/sanitizer.h"
#include "device/fault/fault_device.h"
#include "device/host/host_device.h"

namespace neap::arena {
namespace {

using device::Call;

constexpr Bytes kSize = 64_MiB;

/// Anonymous memory of this process. The host device's own is shared memory.
Bytes resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("RssAnon:")) continue;
    std::uint64_t kib = 0;
    const char* end = line.data() + line.size();
    std::from_chars(line.data() + line.find_first_of("0123456789"), end, kib);
    return Bytes(kib << 10);
  }
  ADD_FAILURE() << "/proc/self/status has no RssAnon";
  return Bytes(0);
}

class ArenaBackup : public testing::Test {
 protected:
  void open(bool keep_host_buffers) {
    device::HostOptions host;
    host.capacity = 4 * kSize;
    device_ = std::move(device::make_host_device(host)).value();
    faults_ = device::make_fault_device(*device_);
    Options options;
    options.keep_host_buffers = keep_host_buffers;
    arena_ = std::move(Arena::make(*faults_, options)).value();
  }
  RegionInfo create(const char* tag, Bytes size = kSize) {
    return std::move(arena_->create(tag, size, Policy::kHost)).value();
  }
  static volatile unsigned& word(const RegionInfo& region) {
    return *reinterpret_cast<volatile unsigned*>(region.address);
  }
  [[nodiscard]] unsigned host_word(const RegionInfo& region) const {
    const auto* copy = static_cast<const unsigned*>(arena_->host_copy(region.id));
    return copy == nullptr ? 0 : *copy;
  }
  void pause(const std::vector<std::string>& tags) {
    const auto done = arena_->pause(tags);
    ASSERT_TRUE(done.ok()) << done.status().message();
  }
  void resume(const std::vector<std::string>& tags) {
    const auto done = arena_->resume(tags);
    ASSERT_TRUE(done.ok()) << done.status().message();
  }

  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<device::FaultDevice> faults_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(ArenaBackup, ResumeReturnsTheTagsHostMemory) {
  if (kInstrumented) GTEST_SKIP() << "a sanitizer's shadow of the memory stays resident";
  open(false);
  const RegionInfo a = create("a"), b = create("b");
  word(a) = 1;
  word(b) = 2;
  const Bytes before = resident_memory();
  pause({"a", "b"});
  const Bytes paused = resident_memory();
  EXPECT_GT(paused, before + kSize * 7 / 4);
  resume({"a"});
  EXPECT_LT(resident_memory(), paused - kSize * 3 / 4) << "b is still paused";
  EXPECT_EQ(arena_->stats().host_buffers, kSize);
  EXPECT_EQ(host_word(b), 2u);
  resume({"b"});
  EXPECT_LT(resident_memory(), before + kSize / 4);
  EXPECT_TRUE(arena_->stats().host_buffers.is_zero());
  EXPECT_EQ(word(a), 1u);
  EXPECT_EQ(word(b), 2u);
}

TEST_F(ArenaBackup, DestroyReturnsTheRegionsHostMemory) {
  open(true);
  const RegionInfo a = create("a"), b = create("b");
  pause({});
  resume({"a"});
  ASSERT_EQ(arena_->stats().host_buffers, kSize * 2);
  ASSERT_TRUE(arena_->destroy(a.id).ok());
  EXPECT_EQ(arena_->stats().host_buffers, kSize);
  ASSERT_TRUE(arena_->destroy(b.id).ok());
  EXPECT_TRUE(arena_->stats().host_buffers.is_zero());
}

TEST_F(ArenaBackup, KeptCopiesCanStayUntilTheNextResume) {
  open(true);
  const RegionInfo a = create("a");
  word(a) = 1;
  pause({"a"});
  const void* at = arena_->host_copy(a.id);
  resume({"a"});
  arena_->set_backup_options(false, Bytes(~0ull), "", Arena::KeptBuffers::kReleaseAtResume);
  EXPECT_EQ(arena_->host_copy(a.id), at);
  EXPECT_EQ(host_word(a), 1u);
  word(a) = 2;
  pause({"a"});
  EXPECT_EQ(arena_->host_copy(a.id), at) << "the same buffer serves the next pause";
  EXPECT_EQ(host_word(a), 2u);
  resume({"a"});
  EXPECT_EQ(arena_->host_copy(a.id), nullptr);
  EXPECT_TRUE(arena_->stats().host_buffers.is_zero());
}

TEST_F(ArenaBackup, AFailedResumePinsItsBackupsAgain) {
  open(false);
  const RegionInfo a = create("a", 3 * kSize);  // two chunks of pinned memory
  word(a) = 7;
  pause({"a"});
  faults_->arm({.fail_at = 1, .only = Call::kQueueDrain});
  EXPECT_FALSE(arena_->resume(std::vector<std::string>{"a"}).ok());
  ASSERT_TRUE(faults_->fired());
  EXPECT_EQ(host_word(a), 7u);
  faults_->arm({.only = Call::kUnregisterHost});
  resume({"a"});
  EXPECT_EQ(faults_->calls(), 2u) << "both chunks were pinned";
  EXPECT_EQ(word(a), 7u);
}

TEST_F(ArenaBackup, UnpinsEveryChunkOnce) {
  open(false);
  create("a", 3 * kSize);
  pause({"a"});
  faults_->arm({.only = Call::kUnregisterHost});
  resume({"a"});
  EXPECT_EQ(faults_->calls(), 2u);
}

// A pause that releases its pages does so behind each copy. When it fails, they come back from the host.
TEST_F(ArenaBackup, AFailedPauseRestoresWhatItReleased) {
  open(true);
  arena_->set_page_limit("a", 8_MiB);
  const RegionInfo a = create("a");
  auto* words = reinterpret_cast<std::uint64_t*>(a.address);
  const std::size_t count = kSize.count() / sizeof *words;
  for (std::size_t i = 0; i < count; ++i) words[i] = i * 0x9e3779b97f4a7c15u;
  const std::vector<std::string> tag{"a"};
  const auto releases = arena_->stats().driver_releases;
  faults_->arm({.fail_at = 3, .only = Call::kUnmap});
  EXPECT_FALSE(arena_->pause(tag, {.release_pages = true}).ok());
  ASSERT_TRUE(faults_->fired());
  EXPECT_GT(arena_->stats().driver_releases, releases) << "this test is about released pages";
  const RegionInfo now = *arena_->info(a.id);
  EXPECT_EQ(now.state, State::kResident);
  EXPECT_EQ(now.mapped, kSize);
  EXPECT_EQ(now.generation, a.generation + 1) << "it has other pages";
  const auto intact = [&] {
    for (std::size_t i = 0; i < count; ++i)
      if (words[i] != i * 0x9e3779b97f4a7c15u) return false;
    return true;
  };
  EXPECT_TRUE(intact());
  ASSERT_TRUE(arena_->pause(tag, {.release_pages = true}).ok());
  EXPECT_TRUE(arena_->stats().physical.is_zero());
  resume(tag);
  EXPECT_TRUE(intact());
}

// Resume takes the pages of one chunk at a time; another process may be faster than the check before.
TEST_F(ArenaBackup, MemoryThatRunsOutWhilePagesAreTakenLeavesNothing) {
  open(true);
  arena_->set_page_limit("a", 8_MiB);
  const RegionInfo a = create("a");
  word(a) = 7;
  const std::vector<std::string> tag{"a"};
  ASSERT_TRUE(arena_->pause(tag, {.release_pages = true}).ok());
  const device::FaultPlan plan{
      .fail_at = 6, .only = Call::kCreate, .code = ErrorCode::kOutOfDeviceMemory};
  faults_->arm(plan);
  const auto refused = arena_->resume(tag);
  ASSERT_TRUE(faults_->fired());
  ASSERT_EQ(refused.status().code(), ErrorCode::kOutOfDeviceMemory);
  ASSERT_NE(refused.status().shortage(), nullptr);
  EXPECT_EQ(refused.status().shortage()->need, kSize);
  EXPECT_TRUE(arena_->stats().physical.is_zero()) << "other processes can have it";
  EXPECT_EQ(arena_->info(a.id)->state, State::kPaused);
  faults_->arm(plan);
  const auto waited = arena_->resume(tag, {.wait = std::chrono::seconds(20)});
  ASSERT_TRUE(faults_->fired());
  ASSERT_TRUE(waited.ok()) << waited.status().message();
  EXPECT_EQ(word(a), 7u);
}

}  // namespace
}  // namespace neap::arena

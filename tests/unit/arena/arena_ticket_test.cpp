// Moves in two halves: copies run while the caller goes on, and what a ticket promises until it is finished.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "arena/arena.h"
#include "device/fault/fault_device.h"
#include "device/host/host_device.h"

namespace neap::arena {
namespace {

using device::Call;

constexpr Bytes kTicketSize = 32_MiB;
constexpr double kCopySeconds = 0.4;
const std::vector<std::string> kTag = {"a"};

class ArenaTicket : public testing::Test {
 protected:
  void open(Options options = {}, double copy_seconds = 0) {
    arena_.reset();
    device::HostOptions host;
    host.capacity = 4 * kTicketSize;
    if (copy_seconds > 0) host.link_rate = static_cast<double>(kTicketSize.count()) / copy_seconds;
    device_ = std::move(device::make_host_device(host)).value();
    faults_ = device::make_fault_device(*device_);
    arena_ = std::move(Arena::make(*faults_, options)).value();
  }
  RegionInfo create(const char* tag = "a", Bytes size = kTicketSize) {
    const RegionInfo region = std::move(arena_->create(tag, size, Policy::kHost)).value();
    fill(region, 1);
    return region;
  }
  RegionInfo create_paused() {
    const RegionInfo region = create();
    EXPECT_TRUE(arena_->pause(kTag).ok());
    return region;
  }
  static void fill(const RegionInfo& region, std::uint64_t value) {
    auto* words = reinterpret_cast<std::uint64_t*>(region.address);
    std::fill(words, words + region.size.count() / 8, value);
  }
  static bool holds(const RegionInfo& region, std::uint64_t value) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(region.address);
    return std::all_of(words, words + region.size.count() / 8,
                       [&](std::uint64_t word) { return word == value; });
  }
  State state(const RegionInfo& region) const { return arena_->info(region.id)->state; }
  std::unique_ptr<Ticket> begin_resume() {
    auto ticket = arena_->begin_resume(kTag);
    EXPECT_TRUE(ticket.ok()) << ticket.status().message();
    return std::move(ticket).value();
  }
  std::unique_ptr<Ticket> begin_backup() {
    auto ticket = arena_->begin_backup(kTag);
    EXPECT_TRUE(ticket.ok()) << ticket.status().message();
    return std::move(ticket).value();
  }
  static MoveReport finish(Ticket& ticket) {
    const auto done = ticket.finish();
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() ? *done : MoveReport{};
  }
  Bytes paused_without_a_copy() {
    PauseOptions options;
    options.unchanged = true;
    const auto done = arena_->pause(kTag, options);
    EXPECT_TRUE(done.ok());
    return done->copied;
  }

  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<device::FaultDevice> faults_;
  std::unique_ptr<Arena> arena_;
};

void compute() {
  std::this_thread::sleep_for(std::chrono::duration<double>(3 * kCopySeconds));
}

TEST_F(ArenaTicket, AResumeHidesBehindWork) {
  open({}, kCopySeconds);
  const RegionInfo region = create_paused();
  const auto ticket = begin_resume();
  EXPECT_EQ(state(region), State::kResuming);
  EXPECT_EQ(arena_->stats().physical - arena_->stats().page_store, kTicketSize)
      << "pages are secured";
  compute();
  const MoveReport report = finish(*ticket);
  EXPECT_EQ(state(region), State::kResident);
  EXPECT_TRUE(holds(region, 1));
  EXPECT_EQ(report.copied, kTicketSize);
  EXPECT_GE(report.copy_seconds, kCopySeconds * 0.99);
  EXPECT_LT(report.seconds, report.copy_seconds / 2);
}

TEST_F(ArenaTicket, ABackupHidesBehindWorkAndThePauseCopiesNothing) {
  open({}, kCopySeconds);
  const RegionInfo region = create();
  ASSERT_TRUE(arena_->prepare(kTag).ok());
  const auto ticket = begin_backup();
  EXPECT_EQ(state(region), State::kResident);
  EXPECT_TRUE(holds(region, 1)) << "it may be read";
  compute();
  const MoveReport report = finish(*ticket);
  EXPECT_EQ(report.copied, kTicketSize);
  EXPECT_GE(report.copy_seconds, kCopySeconds * 0.99);
  EXPECT_LT(report.seconds, report.copy_seconds / 2);
  EXPECT_EQ(paused_without_a_copy(), Bytes());
  const auto usage = arena_->stats().tags.front();
  EXPECT_EQ(usage.copied_to_host, kTicketSize);
  EXPECT_EQ(usage.pauses, 1U);
  ASSERT_TRUE(arena_->resume(kTag).ok());
  EXPECT_TRUE(holds(region, 1));
}

TEST_F(ArenaTicket, WithoutWorkTheCopyIsWaitedFor) {
  open({}, kCopySeconds);
  const RegionInfo region = create_paused();
  const MoveReport report = finish(*begin_resume());
  EXPECT_TRUE(holds(region, 1));
  EXPECT_GE(report.seconds, kCopySeconds * 0.9);
}

TEST_F(ArenaTicket, AnEarlierBackupIsReplaced) {
  open();
  const RegionInfo region = create_paused();
  ASSERT_TRUE(arena_->resume(kTag).ok());
  fill(region, 2);
  (void)finish(*begin_backup());
  EXPECT_EQ(paused_without_a_copy(), Bytes());
  ASSERT_TRUE(arena_->resume(kTag).ok());
  EXPECT_TRUE(holds(region, 2));
}

TEST_F(ArenaTicket, OnlyContentsThatThePolicyKeepsOnTheHostAreCopied) {
  open();
  (void)std::move(arena_->create("a", kTicketSize, Policy::kDiscard)).value();
  const auto disk = std::move(arena_->create("a", kTicketSize, Policy::kDisk)).value();
  fill(disk, 3);
  EXPECT_EQ(finish(*begin_backup()).copied, Bytes());
  EXPECT_EQ(paused_without_a_copy(), kTicketSize) << "to disk";
  ASSERT_TRUE(arena_->resume(kTag).ok());
  EXPECT_TRUE(holds(disk, 3));
}

TEST_F(ArenaTicket, NothingToMoveIsDoneAtOnce) {
  open();
  const RegionInfo region = create();
  EXPECT_EQ(finish(*begin_resume()).regions, 0U);
  ASSERT_TRUE(arena_->pause(kTag).ok());
  EXPECT_EQ(finish(*begin_backup()).copied, Bytes());
  EXPECT_EQ(state(region), State::kPaused);
}

TEST_F(ArenaTicket, ASecondMoveWaitsForTheTicket) {
  open();
  const RegionInfo region = create_paused();
  auto ticket = begin_resume();
  std::atomic<bool> paused = false;
  std::thread other([&] {
    EXPECT_TRUE(arena_->pause(kTag).ok());
    paused = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(paused);
  // A ticket need not be finished by the thread that began it.
  std::thread([&] { (void)finish(*ticket); }).join();
  other.join();
  EXPECT_EQ(state(region), State::kPaused);
}

TEST_F(ArenaTicket, OtherTagsMoveMeanwhile) {
  open({}, kCopySeconds);
  const RegionInfo region = create_paused();
  const RegionInfo other = create("b");
  const auto ticket = begin_resume();
  PauseOptions discard;
  discard.policy = Policy::kDiscard;
  const std::vector<std::string> b = {"b"};
  ASSERT_TRUE(arena_->pause(b, discard).ok());
  EXPECT_EQ(state(other), State::kPaused);
  EXPECT_EQ(state(region), State::kResuming);
  (void)finish(*ticket);
  EXPECT_TRUE(holds(region, 1));
}

TEST_F(ArenaTicket, ATicketIsFinishedOnceAndByItsDestructor) {
  open();
  const RegionInfo region = create_paused();
  (void)begin_resume();
  EXPECT_EQ(state(region), State::kResident);
  EXPECT_TRUE(holds(region, 1));
  (void)begin_backup();
  EXPECT_EQ(paused_without_a_copy(), Bytes());
  const auto ticket = begin_resume();
  (void)finish(*ticket);
  EXPECT_EQ(ticket->finish().status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(state(region), State::kResident);
}

TEST_F(ArenaTicket, WithoutDeviceMemoryABeginChangesNothing) {
  open();
  const RegionInfo region = create_paused();
  const RegionInfo rest = create("b", 4 * kTicketSize);
  const auto ticket = arena_->begin_resume(kTag);
  ASSERT_EQ(ticket.status().code(), ErrorCode::kOutOfDeviceMemory);
  ASSERT_NE(ticket.status().shortage(), nullptr);
  EXPECT_EQ(ticket.status().shortage()->need, kTicketSize);
  EXPECT_EQ(state(region), State::kPaused);
  ASSERT_TRUE(arena_->destroy(rest.id).ok());
  (void)finish(*begin_resume());
  EXPECT_TRUE(holds(region, 1));
}

TEST_F(ArenaTicket, WithoutHostMemoryABeginChangesNothing) {
  Options options;
  options.host_budget = kTicketSize / 2;
  open(options);
  const RegionInfo region = create();
  EXPECT_EQ(arena_->begin_backup(kTag).status().code(), ErrorCode::kOutOfHostMemory);
  EXPECT_EQ(state(region), State::kResident);
  EXPECT_TRUE(holds(region, 1));
  arena_->set_backup_options(true, Bytes(~0ull), "");
  (void)finish(*begin_backup());
  EXPECT_EQ(paused_without_a_copy(), Bytes());
}

TEST_F(ArenaTicket, AFailureAtTheEndLeavesTheStateFromBefore) {
  for (const Call call : {Call::kQueueSeconds, Call::kQueueDrain}) {
    SCOPED_TRACE(to_string(call));
    open();
    const RegionInfo region = create();
    auto ticket = begin_backup();
    faults_->arm({1, call, ErrorCode::kDriver, false});
    const auto backup = ticket->finish();
    faults_->arm({});
    ASSERT_FALSE(backup.ok());
    EXPECT_NE(backup.status().message().find("backing up a"), std::string::npos);
    EXPECT_EQ(state(region), State::kResident);
    fill(region, 2);
    EXPECT_EQ(paused_without_a_copy(), kTicketSize) << "half a copy is none";
    ticket = begin_resume();
    faults_->arm({1, call, ErrorCode::kDriver, false});
    const auto resume = ticket->finish();
    faults_->arm({});
    ASSERT_FALSE(resume.ok());
    EXPECT_NE(resume.status().message().find("resuming a"), std::string::npos);
    EXPECT_EQ(state(region), State::kPaused);
    ASSERT_TRUE(arena_->resume(kTag).ok());
    EXPECT_TRUE(holds(region, 2));
  }
}

TEST_F(ArenaTicket, HostMemoryThatIsNotKeptGoesBack) {
  Options options;
  options.keep_host_buffers = false;
  open(options);
  const RegionInfo region = create_paused();
  EXPECT_EQ(arena_->stats().host_buffers, kTicketSize);
  (void)finish(*begin_resume());
  EXPECT_EQ(arena_->stats().host_buffers, Bytes());
  (void)finish(*begin_backup());
  EXPECT_EQ(arena_->stats().host_buffers, kTicketSize) << "the copy that the next pause relies on";
  EXPECT_EQ(paused_without_a_copy(), Bytes());
  ASSERT_TRUE(arena_->resume(kTag).ok());
  EXPECT_TRUE(holds(region, 1));
}

}  // namespace
}  // namespace neap::arena

#include "trace/recorder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include "base/log.h"
#include "trace/reader.h"

namespace {
thread_local std::uint64_t heap_calls = 0;
}
// Counts this thread's heap calls: record() must make none.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++heap_calls;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace neap::trace {
namespace {

class RecorderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            ("neap_recorder_" + std::to_string(::getpid()) + "_" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".trace");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

TEST_F(RecorderTest, EndsAtItsLargestSize) {
  RecorderOptions options;
  options.most_bytes = 64_KiB;
  auto recorder = value_or_throw(Recorder::open(path_, {}, options));
  std::uint64_t random = 1;
  for (std::uint64_t i = 0; i < 400000; ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    recorder->record({.address = random, .size = random >> 40, .kind = EventKind::kAlloc});
    if (i % 20000 == 0) {
      EXPECT_TRUE(recorder->flush().ok());
    }
  }
  recorder->record({.name = recorder->intern("late"), .kind = EventKind::kPhaseBegin});
  EXPECT_TRUE(recorder->flush().ok());  // does not wait for what is not written
  EXPECT_TRUE(recorder->close().ok());
  EXPECT_LT(std::filesystem::file_size(path_), (64_KiB + 2_MiB).count());
  const Recording recording = value_or_throw(read(path_));
  EXPECT_TRUE(recording.truncated.empty());
  ASSERT_EQ(recording.warnings.size(), 1U);
  EXPECT_NE(recording.warnings[0].find("largest size of 64"), std::string::npos)
      << recording.warnings[0];
  EXPECT_GT(recording.event_count(), 1000U);
  EXPECT_LT(recording.event_count(), 200000U);
}

TEST_F(RecorderTest, WritesWhatItWasTold) {
  auto recorder = value_or_throw(Recorder::open(path_, {{"environment", R"({"host":"x"})"}}));
  const std::uint32_t phase = recorder->intern("generate");
  recorder->record({.name = phase, .kind = EventKind::kPhaseBegin});
  const std::uint32_t kv = recorder->intern("rollout.kv");
  for (std::uint64_t i = 0; i < 200000; ++i) {
    recorder->record({.address = 0x1000 + i * 512,
                      .size = i,
                      .name = kv,
                      .device = static_cast<std::uint16_t>(i % 3 == 0 ? 1 : 0),
                      .kind = EventKind::kMap});
  }
  recorder->record({.name = phase, .kind = EventKind::kPhaseEnd});
  ASSERT_TRUE(recorder->close().ok());
  EXPECT_EQ(recorder->dropped(), 0U);
  EXPECT_TRUE(recorder->close().ok()) << "idempotent";

  const Recording r = value_or_throw(read(path_));
  EXPECT_TRUE(r.truncated.empty()) << r.truncated;
  EXPECT_EQ(r.event_count(), 200002U);
  EXPECT_EQ(r.metadata_value("environment"), R"({"host":"x"})");
  EXPECT_GT(r.start_unix_ns, 1'600'000'000'000'000'000U);
  ASSERT_EQ(r.devices.size(), 2U);
  const auto& events = r.devices[0].events;
  EXPECT_EQ(events.front().kind, EventKind::kPhaseBegin);
  EXPECT_EQ(r.names.name(events.front().name), "generate");
  EXPECT_EQ(r.names.name(events[1].name), "rollout.kv");
  EXPECT_EQ(events[1].address, 0x1000U + 512);
  EXPECT_EQ(events.back().kind, EventKind::kPhaseEnd);
  for (std::size_t i = 1; i < events.size(); ++i)
    ASSERT_LE(events[i - 1].time_ns, events[i].time_ns);
  EXPECT_GT(events.back().time_ns, 0U);
}

TEST_F(RecorderTest, KeepsTheOrderOfTheCallersLock) {
  auto recorder = value_or_throw(Recorder::open(path_, {}, {.ring_events = 1024}));
  constexpr int kThreads = 8;
  constexpr std::uint64_t kEach = 20000;
  std::mutex source;
  std::uint64_t next = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        if (i % 4000 == 0) (void)recorder->intern("tag" + std::to_string(t) + std::to_string(i));
        const std::lock_guard lock(source);
        recorder->record({.address = next++, .kind = EventKind::kAlloc});
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_TRUE(recorder->close().ok());
  const Recording r = value_or_throw(read(path_));
  ASSERT_EQ(r.event_count() + recorder->dropped(), kThreads * kEach);
  ASSERT_EQ(recorder->dropped(), 0U) << "a ring of 1024 waits for the writer, it does not drop";
  const auto& events = r.devices[0].events;
  for (std::size_t i = 0; i < events.size(); ++i) ASSERT_EQ(events[i].address, i);
}

TEST_F(RecorderTest, EightThreadsAtOnceLoseNothing) {
  auto recorder = value_or_throw(Recorder::open(path_, {}, {.ring_events = 4096}));
  constexpr std::uint64_t kThreads = 8;
  constexpr std::uint64_t kEach = 30000;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::uint32_t name = recorder->intern("thread " + std::to_string(t));
      for (std::uint64_t i = 0; i < kEach; ++i) {
        recorder->record({.address = i, .stream = t, .name = name, .kind = EventKind::kMark});
        if (i % 10000 == 0) (void)recorder->flush();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_TRUE(recorder->close().ok());
  const Recording r = value_or_throw(read(path_));
  ASSERT_EQ(r.event_count(), kThreads * kEach);
  std::vector<std::uint64_t> next(kThreads, 0);
  for (const Event& e : r.devices[0].events) {
    ASSERT_EQ(e.address, next[e.stream]++) << "each thread's events keep their order";
    ASSERT_EQ(r.names.name(e.name), "thread " + std::to_string(e.stream));
  }
}

TEST_F(RecorderTest, RecordingTakesNoHeapMemory) {
  auto recorder = value_or_throw(Recorder::open(path_));
  const std::uint64_t before = heap_calls;
  for (std::uint64_t i = 0; i < 300000; ++i)
    recorder->record({.address = i, .kind = EventKind::kAlloc});
  EXPECT_EQ(heap_calls, before);
  ASSERT_TRUE(recorder->close().ok());
}

TEST_F(RecorderTest, FlushPutsEventsIntoTheFile) {
  auto recorder =
      value_or_throw(Recorder::open(path_, {}, {.flush_interval = std::chrono::hours(1)}));
  for (std::uint64_t i = 0; i < 10; ++i) recorder->record({.address = i});
  ASSERT_TRUE(recorder->flush().ok());
  const Recording r = value_or_throw(read(path_));
  EXPECT_EQ(r.event_count(), 10U);
  EXPECT_FALSE(r.truncated.empty()) << "a running trace says that it has no end yet";
}

TEST_F(RecorderTest, BrokenDiskStopsTheRecordingNotTheProgram) {
  log::set_level(log::Level::kError);
  ::signal(SIGXFSZ, SIG_IGN);
  auto recorder = value_or_throw(Recorder::open(path_));
  for (std::uint64_t i = 0; i < 1000; ++i) recorder->record({.address = i * 7919});
  ASSERT_TRUE(recorder->flush().ok());
  const auto good = std::filesystem::file_size(path_);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = good + 100;
  ::setrlimit(RLIMIT_FSIZE, &small);
  for (std::uint64_t i = 0; i < 500000; ++i) recorder->record({.address = i * i * 7919});
  const Status failed = recorder->close();
  ::setrlimit(RLIMIT_FSIZE, &before);
  log::set_level(log::Level::kInfo);
  EXPECT_EQ(failed.code(), ErrorCode::kIo);
  EXPECT_NE(failed.message().find(path_.string()), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(path_), good) << "the half-written block is cut off";
  const Recording r = value_or_throw(read(path_));
  EXPECT_EQ(r.event_count(), 1000U);
}

TEST_F(RecorderTest, FullRingWaitsAWhileThenDropsAndSaysSo) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  auto recorder = value_or_throw(
      Recorder::open(path_, {}, {.ring_events = 1024, .full_wait = std::chrono::milliseconds(50)}));
  const auto begin = std::chrono::steady_clock::now();
  // A pipe takes 64 KiB; random addresses do not compress.
  std::uint64_t x = 88172645463325252ULL;
  std::uint64_t sent = 0;
  for (; sent < 100000; ++sent) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    recorder->record({.address = x, .size = x * 3, .stream = x * 7});
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(recorder->dropped(), 0U);
  EXPECT_EQ(recorder->recorded() + recorder->dropped(), sent);
  EXPECT_LT(took, std::chrono::seconds(5)) << "waits once, not for every event";
  std::thread drain([&] {
    ::fcntl(reader, F_SETFL, 0);
    std::vector<char> sink(1 << 16);
    while (::read(reader, sink.data(), sink.size()) > 0) {
    }
  });
  (void)recorder->close();  // a pipe cannot be synced everywhere; what matters is that it returns
  drain.join();
  ::close(reader);
}

TEST_F(RecorderTest, ForkedChildDoesNotRecord) {
  auto recorder = value_or_throw(Recorder::open(path_));
  recorder->record({.address = 1});
  ASSERT_TRUE(recorder->flush().ok());
  const pid_t child = ::fork();
  if (child == 0) {
    for (std::uint64_t i = 0; i < 200000; ++i) recorder->record({.address = 99});
    (void)recorder->intern("from the child");
    const bool ok = recorder->flush().ok() && recorder->close().ok();
    recorder.reset();
    ::_exit(ok ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
  recorder->record({.address = 2});
  ASSERT_TRUE(recorder->close().ok());
  const Recording r = value_or_throw(read(path_));
  ASSERT_EQ(r.event_count(), 2U);
  EXPECT_EQ(r.devices[0].events[1].address, 2U);
}

TEST_F(RecorderTest, OpenFailuresNameThePath) {
  const auto missing = Recorder::open("/nonexistent-folder/x.trace");
  EXPECT_EQ(missing.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.status().message().find("/nonexistent-folder/x.trace"), std::string::npos);
  if (::access("/dev/full", W_OK) == 0) {
    const auto full = Recorder::open("/dev/full");
    EXPECT_EQ(full.status().code(), ErrorCode::kIo);
  }
}

}  // namespace
}  // namespace neap::trace

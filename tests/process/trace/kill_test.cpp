// A recording process dies by SIGKILL at any moment; its file must be readable and hold everything
// that the process had been told is in it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "trace/reader.h"
#include "trace/recorder.h"

namespace neap::trace {
namespace {

/// Records numbered events for ever; after each flush it says how many are safe.
[[noreturn]] void record_for_ever(const std::filesystem::path& path, int pipe) {
  auto recorder = Recorder::open(path, {{"plan", "{\"tags\": 3}"}},
                                 {.flush_interval = std::chrono::milliseconds(1)});
  if (!recorder.ok()) ::_exit(3);
  for (std::uint64_t i = 0;; ++i) {
    // New names all the time: their definitions must never come after their use.
    const std::uint32_t name = (*recorder)->intern("tag " + std::to_string(i / 100));
    (*recorder)->record({.address = i, .size = i * 7919, .name = name, .kind = EventKind::kMap});
    if (i % 5000 == 4999) {
      if (!(*recorder)->flush().ok()) ::_exit(4);
      const std::uint64_t safe = i + 1;
      if (::write(pipe, &safe, sizeof safe) != sizeof safe) ::_exit(5);
    }
  }
}

TEST(KilledRecorder, FileHoldsWhatWasFlushed) {
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    ("neap_killed_" + std::to_string(::getpid()) + ".trace");
  for (int round = 0; round < 12; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipe[0]);
      record_for_ever(path, pipe[1]);
    }
    ::close(pipe[1]);
    std::uint64_t safe = 0;
    ASSERT_EQ(::read(pipe[0], &safe, sizeof safe), static_cast<ssize_t>(sizeof safe));
    std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state)) << "it recorded until it was killed";
    for (std::uint64_t later = 0; ::read(pipe[0], &later, sizeof later) == sizeof later;)
      safe = later;
    ::close(pipe[0]);

    const auto r = read(path);
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_NE(r->truncated.find("no end mark"), std::string::npos);
    EXPECT_EQ(r->metadata_value("plan"), "{\"tags\": 3}");
    ASSERT_GE(r->event_count(), safe);
    const auto& events = r->devices.at(0).events;
    for (std::uint64_t i = 0; i < events.size(); ++i) {
      ASSERT_EQ(events[i].address, i);
      ASSERT_EQ(r->names.name(events[i].name), "tag " + std::to_string(i / 100));
    }
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace neap::trace

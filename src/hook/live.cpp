#include "hook/live.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "hook/session.h"
#include "hook/stats_text.h"

namespace neap::hook {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(250);

/// Without fsync: a reader wants the newest numbers, and nobody wants them after a power cut.
void publish(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  const bool whole = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  if (!whole || ::rename(fresh.c_str(), path.c_str()) != 0) ::unlink(fresh.c_str());
}

void run(const std::string& folder) {
  const std::string path = format("{}/{}.json", folder, ::getpid());
  std::string last;
  while (true) {
    // Numbers that move by themselves (free memory) come from the driver and are left out here.
    std::string text = stats_json(StatsDetail::kWithoutDriver);
    if (text != last) {
      publish(path, text);
      last = std::move(text);
    }
    std::this_thread::sleep_for(kInterval);
  }
}

/// "{pid}" in a path lets the children of one command write files of their own.
std::string with_process_id(std::string path) {
  constexpr std::string_view kHole = "{pid}";
  if (const auto at = path.find(kHole); at != std::string::npos) {
    path.replace(at, kHole.size(), std::to_string(::getpid()));
  }
  return path;
}

std::string command_line() {
  auto text = read_file("/proc/self/cmdline", Bytes(1 << 20));
  if (!text.ok()) return {};
  std::string line = std::move(text).value();
  for (char& c : line) {
    if (c == '\0') c = ' ';
  }
  return line;
}

std::atomic<int> started_in{0};  ///< process id, so that a forked child starts its own

void stop_trace_at_exit() {
  if (started_in.load() == ::getpid() && Session::get().is_recording()) {
    if (const Status s = Session::get().stop(); !s.ok()) log::warn(s.message());
  }
}

}  // namespace

void Live::ensure_started() {
  if (started_in.load(std::memory_order_relaxed) == ::getpid()) return;
  static const char* const kFolder = std::getenv("NEAP_LIVE");
  static const char* const kTrace = std::getenv("NEAP_TRACE");
  if (started_in.exchange(::getpid()) == ::getpid()) return;
  if (kTrace != nullptr && *kTrace != '\0') {
    const Status started =
        Session::get().start(with_process_id(kTrace),
                             {{"command", command_line()}, {"pid", std::to_string(::getpid())}});
    if (started.ok()) {
      // Writes the end of a file; nothing there touches the GPU.
      static const int kAtExit = std::atexit(stop_trace_at_exit);
      (void)kAtExit;
    } else {
      log::warn("NEAP_TRACE: " + started.message());
    }
  }
  if (kFolder == nullptr || *kFolder == '\0') return;
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);  // the program's signals are for its own threads
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(run, std::string(kFolder)).detach();
  } catch (const std::exception& e) {
    log::warn(format("NEAP_LIVE: no thread to publish from: {}", e.what()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace neap::hook

#include "hook/live.h"

#include <dlfcn.h>
#include <fcntl.h>
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
#include "base/process.h"
#include "hook/runtime.h"
#include "hook/session.h"
#include "hook/stats_text.h"

namespace neap::hook {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(250);

/// Writes without fsync: the file is not needed after a power failure.
void publish(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  const bool whole = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  if (!whole || ::rename(fresh.c_str(), path.c_str()) != 0) ::unlink(fresh.c_str());
}

/// A process may have several hook libraries (that of `neap run`, and a drop-in that Python loads).
/// The program calls the functions of the first one. Only the others can detect that they are not
/// the first.
bool is_first_hook() {
  static const bool kFirst = [] {
    Dl_info mine{};
    Dl_info seen{};
    const void* symbol = ::dlsym(RTLD_DEFAULT, "neap_abi_version");
    return symbol == nullptr || ::dladdr(reinterpret_cast<const void*>(&publish), &mine) == 0 ||
           ::dladdr(symbol, &seen) == 0 || mine.dli_fbase == seen.dli_fbase;
  }();
  return kFirst;
}

std::string live_path(const char* folder) {
  return format("{}/{}{}.json", folder, ::getpid(), is_first_hook() ? "" : "-2");
}

void run(const std::string& path) {
  std::string last;
  while (true) {
    // Omit the driver's figures (free memory), which change all the time.
    std::string text = stats_json(StatsDetail::kWithoutDriver);
    if (text != last) {
      publish(path, text);
      last = std::move(text);
    }
    std::this_thread::sleep_for(kInterval);
  }
}

/// Replaces "{pid}" by the process id, so that children of one command write separate files.
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

std::atomic<int> started_in{0};  ///< process id; a forked child therefore starts its own thread

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

/// Writes the last statistics and ends the trace. Touches files only, not the GPU.
void finish_at_exit() {
  if (started_in.load() != ::getpid()) return;
  if (const char* folder = variable("NEAP_LIVE")) {
    publish(live_path(folder), stats_json(StatsDetail::kWithoutDriver));
  }
  if (Session::get().is_recording()) {
    if (const Status s = Session::get().stop(); !s.ok()) log::warn(s.message());
  }
}

}  // namespace

void Live::ensure_started() {
  if (started_in.load(std::memory_order_relaxed) == ::getpid()) return;
  // A second library publishes only if it has regions. The first one counts the forwarded calls.
  if (!is_first_hook() && Runtime::get().devices().empty()) return;
  if (started_in.exchange(::getpid()) == ::getpid()) return;
  const char* folder = variable("NEAP_LIVE");
  const char* trace = variable("NEAP_TRACE");
  if (folder == nullptr && trace == nullptr) return;
  if (trace != nullptr && !is_first_hook()) {
    log::warn(
        "NEAP_TRACE: another hook library of this process writes the trace; it does not contain "
        "this "
        "library's regions");
    trace = nullptr;
  }
  static const int kAtExit = std::atexit(finish_at_exit);
  (void)kAtExit;
  if (trace != nullptr) {
    const Status started = Session::get().start(
        with_process_id(trace), {{"command", command_line()}, {"pid", std::to_string(::getpid())}});
    if (!started.ok()) log::warn("NEAP_TRACE: " + started.message());
  }
  if (folder == nullptr) return;
  const SignalsBlocked blocked;
  try {
    std::thread(run, live_path(folder)).detach();
  } catch (const std::exception& e) {
    log::warn(format("NEAP_LIVE: cannot create the publishing thread: {}", e.what()));
  }
}

}  // namespace neap::hook

#include "report/tracker.h"

#include <poll.h>

#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/child_process.h"
#include "base/format.h"
#include "base/log.h"
#include "base/python.h"

namespace neap::report {

// Text of src/report/tracker.py, embedded by CMake.
extern const char* const kTrackerProgram;

namespace {

using Clock = std::chrono::steady_clock;

std::string line_of(const Json& json) {
  return json_text(json) + "\n";
}

}  // namespace

struct Tracker::Impl {
  std::string kind;
  double finish_seconds = 0;
  std::unique_ptr<ChildProcess> process;

  std::mutex mutex;  // guards lines, closing and gone
  std::condition_variable changed;
  std::deque<std::string> lines;
  bool closing = false, gone = false;
  std::uint64_t dropped = 0;
  std::thread thread;

  // Used by the thread only:
  std::string shown;
  Clock::time_point deadline{};  // for the process's end, set when closing

  void run();
  [[nodiscard]] bool send(const std::string& line);
  /// Checks the process. False: it has ended.
  [[nodiscard]] bool look(bool until_writable, std::chrono::milliseconds wait);
  void end(const std::string& why);
};

void Tracker::Impl::end(const std::string& why) {
  {
    const std::lock_guard lock(mutex);
    gone = true;
    lines.clear();
  }
  if (!why.empty())
    log::warn(
        format("{} gets no more metrics: {}. The training goes on; trainer.logger names where "
               "metrics go",
               kind, why));
}

bool Tracker::Impl::look(bool until_writable, std::chrono::milliseconds wait) {
  std::array<pollfd, 3> files{{{process->out(), POLLIN, 0},
                               {process->err(), POLLIN, 0},
                               {until_writable ? process->in() : -1, POLLOUT, 0}}};
  if (::poll(files.data(), files.size(), static_cast<int>(wait.count())) <= 0) return true;
  if (files[1].revents != 0) process->read_errors();
  if (files[0].revents == 0) return true;
  const bool goes_on = process->read(shown).ok();
  for (std::size_t end = shown.find('\n'); end != std::string::npos; end = shown.find('\n')) {
    constexpr std::string_view kShown = "#shown ";
    if (shown.starts_with(kShown)) log::info(shown.substr(kShown.size(), end - kShown.size()));
    shown.erase(0, end + 1);
  }
  return goes_on;
}

bool Tracker::Impl::send(const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    const Result<std::size_t> written = process->write(std::string_view(line).substr(done));
    if (!written.ok()) return false;
    done += *written;
    if (!look(done < line.size(), std::chrono::milliseconds(done < line.size() ? 200 : 0)))
      return false;
    const std::lock_guard lock(mutex);
    if (closing && Clock::now() > deadline) return false;
  }
  return true;
}

void Tracker::Impl::run() {
  bool alive = true;
  while (alive) {
    std::string line;
    {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::milliseconds(200),
                       [&] { return closing || !lines.empty(); });
      if (lines.empty() && closing) break;
      if (!lines.empty()) {
        line = std::move(lines.front());
        lines.pop_front();
      }
    }
    alive = line.empty() ? look(false, std::chrono::milliseconds(0)) : send(line);
  }
  if (alive) {
    process->close_stdin();
    while (look(false, std::chrono::milliseconds(100))) {
      const std::lock_guard lock(mutex);
      if (Clock::now() > deadline) break;
    }
  }
  process->read_errors();
  const auto is_late = [&] {
    const std::lock_guard lock(mutex);
    return closing && Clock::now() > deadline;
  };
  std::string words = process->last_words();
  // The process may close its stdout long before it ends: W&B then stops its background service.
  while (alive && !words.starts_with("; it ") && !is_late()) words = process->last_words();
  const bool late = is_late();
  process.reset();
  if (late)
    end(format("its process did not end within {:.3g} s", finish_seconds));
  else if (!alive || !words.starts_with("; it ended with exit code 0"))
    end("its process failed" + words);
  else
    end("");
}

Tracker::Tracker(const TrackerOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->kind = options.kind;
  impl_->finish_seconds = options.finish_seconds;
  auto process = ChildProcess::start(python_program(kTrackerProgram, {}));
  if (!process.ok()) {
    impl_->end(format("python3 with the package {} cannot start: {}", options.kind,
                      process.status().message()));
    return;
  }
  impl_->process = std::move(*process);
  impl_->lines.push_back(line_of({{"kind", options.kind},
                                  {"folder", std::filesystem::absolute(options.folder).string()},
                                  {"project", options.project},
                                  {"experiment", options.experiment},
                                  {"config", options.config},
                                  {"resumed", options.resumed}}));
  impl_->thread = std::thread([this] { impl_->run(); });
}

Tracker::~Tracker() {
  finish();
}

void Tracker::log(std::uint64_t step, const std::map<std::string, double>& metrics) {
  Json values = Json::object();
  for (const auto& [name, value] : metrics)
    if (std::isfinite(value)) values[name] = value;
  std::string line = line_of({{"step", step}, {"metrics", std::move(values)}});
  const std::lock_guard lock(impl_->mutex);
  if (impl_->gone) return;
  // Keep the first line, which names the run: a process that hangs at its start has not read it
  // yet.
  if (impl_->lines.size() >= kMostLines) {
    impl_->lines.erase(impl_->lines.begin() + 1);
    if (impl_->dropped++ == 0)
      log::warn(
          format("{} takes metrics slower than they come: the oldest are dropped", impl_->kind));
  }
  impl_->lines.push_back(std::move(line));
  impl_->changed.notify_one();
}

void Tracker::finish() {
  if (!impl_->thread.joinable()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closing = true;
    impl_->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(impl_->finish_seconds));
  }
  impl_->changed.notify_one();
  impl_->thread.join();
}

}  // namespace neap::report

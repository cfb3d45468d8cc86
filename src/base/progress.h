// Progress of long work: a bar with rate and time left on a terminal, a line at intervals in a log.
//
// Threads   one Progress belongs to one thread; log lines from others pass above the bar.
// Cost      update() draws at most ten times a second; otherwise one clock read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace neap {

/// Columns of the terminal on stderr; 80 where it is none or does not say.
[[nodiscard]] std::size_t terminal_columns();

class Progress {
 public:
  /// `total` 0 means unknown. `unit` is plural: "steps", "events", "MiB". Quiet when stderr is
  /// closed or NEAP_PROGRESS=off.
  Progress(std::string title, std::uint64_t total, std::string unit);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Sets how much is done, and what to show behind the numbers ("loss 1.23").
  void update(std::uint64_t done, std::string note = {});
  void add(std::uint64_t n, std::string note = {}) { update(done_ + n, std::move(note)); }
  /// Draws the last state and ends the line. Called by the destructor.
  void finish();

 private:
  void draw(bool last);  // under mutex_
  static void clear_line();
  static void redraw();

  // The owner's calls against redraws after other threads' log lines. Taken after the log's lock, never before it.
  std::mutex mutex_;
  std::string title_;
  std::uint64_t total_;
  std::string unit_;
  std::string note_;
  std::uint64_t done_ = 0;
  std::uint64_t first_ = 0;
  bool started_ = false;
  bool finished_ = false;
  bool quiet_ = false;
  bool terminal_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace neap

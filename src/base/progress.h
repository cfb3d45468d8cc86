// Progress of long work: on a terminal a bar with rate and remaining time, in a log a line at
// intervals.
//
// Threads   one Progress belongs to one thread; log lines of other threads appear above the bar.
// Cost      an update draws at most ten times a second on a terminal and every ten seconds in a
//           log; otherwise one clock read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace neap {

/// Columns of the terminal on stderr; 80 without a terminal or if its width is unknown.
[[nodiscard]] std::size_t terminal_columns();

class Progress {
 public:
  /// `total` 0 means unknown. `unit` is plural: "steps", "events", "MiB". Silent if stderr is
  /// closed or NEAP_PROGRESS=off.
  Progress(std::string title, std::uint64_t total, std::string unit);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Starts after `done` finished units. Rate and remaining time count from here.
  void start(std::uint64_t done);
  /// Sets the number of finished units and a note shown after the numbers ("loss 1.23"). Ends the
  /// current part.
  void update(std::uint64_t done, std::string note = {});
  void add(std::uint64_t n, std::string note = {}) { update(done_ + n, std::move(note)); }

  /// Names the current part of the unit, shown after the numbers: "train_actor 3/16 micro-batches".
  /// Without a `total` only its name is shown.
  void begin_part(std::string name, std::uint64_t done = 0, std::uint64_t total = 0,
                  std::string unit = {});
  void update_part(std::uint64_t done);
  void advance_part() { update_part(part_.done + 1); }
  /// Sets a name for the next parts ("validation"); empty: the unit.
  void set_stage(std::string stage);

  /// Draws the last state and ends the line. Called by the destructor.
  void finish();

 private:
  struct Part {
    std::string name, unit;
    std::uint64_t done = 0, total = 0;
  };

  // The caller holds mutex_:
  void draw(bool last);
  void draw_if_due();
  [[nodiscard]] std::string numbers(bool last) const;
  [[nodiscard]] std::string part_text() const;
  [[nodiscard]] std::string bar(std::size_t columns) const;

  static void clear_line();
  static void redraw();

  // Guards the owner's calls against redraws after log lines of other threads. Lock it after the
  // log's lock, never before.
  std::mutex mutex_;
  std::string title_;
  std::uint64_t total_;
  std::string unit_;
  std::string note_;
  std::string stage_;
  Part part_;
  std::uint64_t done_ = 0;
  std::uint64_t first_ = 0;  // units done before start_
  bool counting_ = false;    // first_ is known
  bool started_ = false;     // there is something to show
  bool finished_ = false;
  bool quiet_ = false;
  bool terminal_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point reached_;  // when done_ was set
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace neap

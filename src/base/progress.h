// Progress of long work: a bar with rate and time left on a terminal, a line at intervals in a log.
//
// Threads   one Progress belongs to one thread; log lines from others pass above the bar.
// Cost      an update draws at most ten times a second on a terminal and every ten seconds in a log;
//           otherwise one clock read.
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

  /// `done` units were done before: rate and time left count from here on.
  void start(std::uint64_t done);
  /// Sets how much is done, and what to show behind the numbers ("loss 1.23"). The part has ended.
  void update(std::uint64_t done, std::string note = {});
  void add(std::uint64_t n, std::string note = {}) { update(done_ + n, std::move(note)); }

  /// The unit under way is in this part, shown behind the numbers: "train_actor 3/16 micro-batches".
  /// Without a `total` only its name is shown.
  void begin_part(std::string name, std::uint64_t done = 0, std::uint64_t total = 0,
                  std::string unit = {});
  void update_part(std::uint64_t done);
  void advance_part() { update_part(part_.done + 1); }
  /// What the next parts belong to ("validation"); empty: the unit.
  void set_stage(std::string stage);

  /// Draws the last state and ends the line. Called by the destructor.
  void finish();

 private:
  struct Part {
    std::string name, unit;
    std::uint64_t done = 0, total = 0;
  };

  // Under mutex_:
  void draw(bool last);
  void draw_if_due();
  [[nodiscard]] std::string numbers(bool last) const;
  [[nodiscard]] std::string part_text() const;
  [[nodiscard]] std::string bar(std::size_t columns) const;

  static void clear_line();
  static void redraw();

  // The owner's calls against redraws after other threads' log lines. Taken after the log's lock, never before it.
  std::mutex mutex_;
  std::string title_;
  std::uint64_t total_;
  std::string unit_;
  std::string note_;
  std::string stage_;
  Part part_;
  std::uint64_t done_ = 0;
  std::uint64_t first_ = 0;  // done before start_
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

// What the arena's benchmark cases share: a device, repeated timings, one JSON line a result.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/json.h"
#include "device/device.h"

namespace neap::bench {

struct Setup {
  std::string device = "cuda";  ///< or "host"
  std::uint64_t divide = 1;     ///< sizes are divided by this (rehearsals on small machines)
  int cycles = 20;
  std::string only;
  Json environment;
};

/// Ends the program with a message: a benchmark has nobody to hand an error to.
[[noreturn]] void fail(const Status& status);
inline void must(const Status& status) {
  if (!status.ok()) fail(status);
}
template <class T>
T must(Result<T> result) {
  if (!result.ok()) fail(result.status());
  return std::move(result).value();
}

[[nodiscard]] std::unique_ptr<device::Device> open_device(const Setup& setup);

class Timer {
 public:
  [[nodiscard]] double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct Series {
  std::vector<double> values;
  void add(double value) { values.push_back(value); }
  [[nodiscard]] double at(double quantile) const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) return 0;
    return sorted[static_cast<std::size_t>(quantile * static_cast<double>(sorted.size() - 1) +
                                           0.5)];
  }
};

/// Prints one line: case, what, unit, median, spread, count, and extra fields.
void report(const Setup& setup, const std::string& name, const std::string& what,
            const std::string& unit, const Series& series, Json extra = Json::object());

void run_discard(const Setup& setup);
void run_backup(const Setup& setup);
void run_exchange(const Setup& setup);
void run_lookup(const Setup& setup);
void run_hand_over(const Setup& setup, const char* program);
/// The other process of the hand-over: imports what comes over the socket.
int import_child(const Setup& setup, int socket);

}  // namespace neap::bench

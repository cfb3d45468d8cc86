// Counters that processes of one machine have in common, by a name: a file of shared memory.
//
// Model     One process makes it, the others open it, and the first one removes the name when all have: the memory
//           goes with the last process, whichever way it ends.
// Threads   any: counters are atomic. Each lies in a cache line of its own.
// Failure   Status: kIo with the system's reason; kInvalidArgument where the file is another's or of another size.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace neap::parallel {

class SharedCounters {
 public:
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value;
  };
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

  /// All zero, under a new name.
  [[nodiscard]] static Result<SharedCounters> make(std::size_t count);
  [[nodiscard]] static Result<SharedCounters> open(const std::string& name, std::size_t count);

  SharedCounters(SharedCounters&& other) noexcept;
  ~SharedCounters();

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Counter& at(std::size_t i) const { return counters_[i]; }
  /// Whole pages: a driver can register them.
  [[nodiscard]] void* data() const { return counters_; }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_; }
  /// No further process can open it.
  void remove_name();

 private:
  SharedCounters() = default;
  [[nodiscard]] Status map(int file);

  std::string name_;
  bool named_ = false;  // by this process, and not removed
  Counter* counters_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace neap::parallel

// Atomic counters in shared memory, for processes of one machine.
//
// Model     One process creates a named file and the others open it. The creator removes the name
//           once all have opened it. So the memory is freed with the last process, even after a
//           crash.
// Threads   any: counters are atomic, each in its own cache line.
// Failure   Status: kIo with the system's reason; kInvalidArgument if the file has another owner or
//           another size.
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

  /// Creates counters, all zero, under a new name.
  [[nodiscard]] static Result<SharedCounters> make(std::size_t count);
  [[nodiscard]] static Result<SharedCounters> open(const std::string& name, std::size_t count);

  SharedCounters(SharedCounters&& other) noexcept;
  ~SharedCounters();

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Counter& at(std::size_t i) const { return counters_[i]; }
  /// Page-aligned, so that a driver can register it.
  [[nodiscard]] void* data() const { return counters_; }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_; }
  /// No further process can open it afterwards.
  void remove_name();

 private:
  SharedCounters() = default;
  [[nodiscard]] Status map(int file);

  std::string name_;
  bool named_ = false;  // this process created the name and has not removed it
  Counter* counters_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace neap::parallel

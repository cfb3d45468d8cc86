// Writes a live run's events to a trace file while the run continues.
//
// Model     record() puts the event into a ring of fixed size. One background thread takes events
//           out, compresses them in blocks and appends them to the file. After kill -9 the file has
//           everything except the last flush interval or so; readers accept it.
//
// Threads   any, concurrently. If the callers hold one lock around record(), events keep their
//           order across threads. Times never decrease.
//
// Failure   a full or broken disk stops the recording, not the program: record() then does nothing,
//           the log has one warning, and close() returns the reason. If the writer is too slow,
//           record() waits at most `full_wait` and then drops events. The file has their number.
//
// Limit     a file that reaches RecorderOptions::most_bytes ends with a warning, and record() then
//           does nothing.
//
// Fork      a child process does not record; its copies of the object do nothing.
//
// Cost      under 100 ns per event for the caller, including the clock. record() takes no lock and
//           no heap memory and may be called inside allocation hooks. Memory: 48 bytes times
//           `ring_events`, the same again for the current block, and the interned names.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "trace/event.h"

namespace neap::trace {

/// Keys and values that trace/ does not interpret: "environment", "plan" (JSON texts), "command",
/// ...
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct RecorderOptions {
  std::size_t ring_events = 65536;  ///< rounded up to a power of two, at least 1024
  std::chrono::milliseconds flush_interval{100};
  std::chrono::milliseconds full_wait{200};
  /// File size at which recording stops; one more block may be written. A warning in the file says
  /// so, and readers show it. Zero: no limit.
  Bytes most_bytes{0};
};

class Recorder final : public EventSink {
 public:
  /// Creates or replaces `path` and starts the background thread.
  [[nodiscard]] static Result<std::unique_ptr<Recorder>> open(const std::filesystem::path& path,
                                                              const Metadata& metadata = {},
                                                              RecorderOptions options = {});
  /// Closes the file and logs a failure.
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Sets the time of an event with time_ns 0. Ignored after close and after a failure.
  void record(const Event& event) override;
  /// Takes a lock, and allocates for a new name.
  std::uint32_t intern(std::string_view name) override;

  /// Waits until every event recorded before the call is in the file (not yet synced to the disk).
  Status flush();
  /// Renames the file and replaces an existing one; recording continues.
  Status rename(const std::filesystem::path& path);
  /// Writes the remaining events, marks the file complete, syncs and closes it. Idempotent.
  Status close();

  [[nodiscard]] std::uint64_t recorded() const;  ///< events accepted so far
  [[nodiscard]] std::uint64_t dropped() const;
  [[nodiscard]] std::filesystem::path path() const;
  /// Nanoseconds since the start of the trace: the time that record() would set.
  [[nodiscard]] std::uint64_t now() const;

 private:
  struct Impl;
  explicit Recorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::trace

// Writes a live run's events to a trace file while the run continues.
//
// Model     record() puts the event into a ring of fixed size; one background thread takes events
//           out, compresses them in blocks and appends them to the file. After kill -9 the file
//           holds everything up to about one flush interval before; readers accept it as it is.
// Threads   any, at once. Events keep the order in which record() was entered, also across
//           threads, if the callers hold one lock around it; times never run backwards.
// Failure   a full or broken disk stops the recording, not the program: record() becomes a no-op,
//           the log has one warning, close() returns the reason. When the writer cannot keep up,
//           record() waits at most `full_wait` and then drops, and the file says how many.
// Limit     a file that reaches RecorderOptions::most_bytes ends with a warning, and record() becomes
//           a no-op.
// Fork      a child process does not record; its copies of the object do nothing.
// Cost      under 100 ns an event for the caller, clock included; record() takes no lock and no
//           heap memory and may be called inside allocation hooks. Memory: 48 bytes times
//           `ring_events` and as much again for the block under way, plus the interned names.
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

/// Key and value, opaque to trace/: "environment", "plan" (JSON texts), "command", ...
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct RecorderOptions {
  std::size_t ring_events = 65536;  ///< rounded up to a power of two, at least 1024
  std::chrono::milliseconds flush_interval{100};
  std::chrono::milliseconds full_wait{200};
  /// Size of the file from which on events are no longer recorded; it grows by one more block at
  /// most, and says so in a warning that readers show. Zero: any.
  Bytes most_bytes{0};
};

class Recorder final : public EventSink {
 public:
  /// Creates or replaces `path` and starts the background thread.
  [[nodiscard]] static Result<std::unique_ptr<Recorder>> open(const std::filesystem::path& path,
                                                              const Metadata& metadata = {},
                                                              RecorderOptions options = {});
  /// Closes; a failure goes to the log.
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// An event with time_ns 0 is stamped now. Ignored after close and after a failure.
  void record(const Event& event) override;
  /// Takes a lock, and heap memory for a name that is new.
  std::uint32_t intern(std::string_view name) override;

  /// A phase's begin and end by name; the pair that most callers need.
  void begin_phase(std::string_view name, std::uint16_t device = 0);
  void end_phase(std::string_view name, std::uint16_t device = 0);
  /// Something learned during the run ("result"); a later value for a key replaces an earlier one.
  Status add_metadata(std::string_view key, std::string_view value);

  /// Waits until every event recorded before the call is in the file (not yet synced to the disk).
  Status flush();
  /// Gives the file another name, over one that is there; recording goes on.
  Status rename(const std::filesystem::path& path);
  /// Writes the rest, marks the file complete, syncs and closes it. Idempotent.
  Status close();

  [[nodiscard]] std::uint64_t recorded() const;  ///< accepted so far
  [[nodiscard]] std::uint64_t dropped() const;
  [[nodiscard]] std::filesystem::path path() const;
  /// Nanoseconds since the trace began: what record() would stamp.
  [[nodiscard]] std::uint64_t now() const;

 private:
  struct Impl;
  explicit Recorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::trace

// Writes the file of a Recorder while the program runs.
//
// Threads   one at a time; names may be added under their lock meanwhile.
//
// Failure   Status; the file ends with the last whole block.
//
// Cost      no heap allocation once the largest block has been seen.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string_view>

#include "base/status.h"
#include "trace/recorder.h"
#include "trace/recording.h"
#include "trace/wire_format.h"

namespace neap::trace {

class LiveFile {
 public:
  /// Creates or replaces `path`.
  Status create(const std::filesystem::path& path) { return file_.create(path); }
  /// Writes the start of the trace and its time.
  Status begin(std::chrono::system_clock::time_point wall);
  Status add(const Metadata& metadata);
  /// Writes the names that are new. They are encoded under the lock and written outside of it, so
  /// that interning never waits for the disk.
  Status add_new(const NameTable& names, std::mutex& lock);
  Status add(std::span<const Event> events);
  Status add_warning(std::string_view text);
  /// Writes the total number of dropped events if it has grown.
  Status add_dropped(std::uint64_t all);
  /// Marks the file complete, syncs and closes it.
  Status end(std::uint64_t dropped);
  /// Closes the file without completing it.
  void abandon() { file_.abandon(); }

  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }
  [[nodiscard]] std::uint64_t events() const { return events_; }

 private:
  wire::BlockFile file_;
  wire::Encoder encoder_;
  std::size_t names_ = 1;  // the first name always exists
  std::uint64_t events_ = 0, dropped_ = 0;
};

}  // namespace neap::trace

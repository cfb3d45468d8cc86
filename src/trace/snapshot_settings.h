// The allocator's settings in a snapshot: "allocator_settings".
//
// Threads   one user.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "trace/recording.h"
#include "trace/snapshot_store.h"

namespace neap::trace::snapshot {

class SettingsReader {
 public:
  explicit SettingsReader(const Store& store) : store_(store) {}

  /// Reads a settled dict. False if it has more than 1000 keys.
  [[nodiscard]] bool read(Value dict, RecordedSettings& out);
  /// Whether the entries of this device overflowed their buffer, according to read(). Files have
  /// one answer for all devices, or one per device, by position or by number.
  [[nodiscard]] bool overflowed(std::uint16_t ordinal) const;

 private:
  [[nodiscard]] std::string_view text(Value v) const {
    return store_.texts.text(static_cast<std::uint32_t>(v.payload()));
  }
  void take_setting(std::string_view key, Value v, RecordedSettings& s);
  /// Converts a value for people and for unknown keys. `budget` limits shared and deep values.
  [[nodiscard]] Json to_json(Value v, int depth, std::size_t& budget) const;

  const Store& store_;
  Value overflowed_;
};

}  // namespace neap::trace::snapshot

// Results of `neap replay --json` for a report: the recorded settings, the settings that were
// tried, and the advice.
//
// Threads   plain data.
//
// Failure   kCorrupt if the JSON is not a replay result; the message names the key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/status.h"
#include "trace/recording.h"

namespace neap::report {

struct History;

/// Result of a replay for one setting.
struct SettingOutcome {
  enum class Kind { kTried, kRecorded, kAdvised };
  std::string conf;   ///< PYTORCH_CUDA_ALLOC_CONF
  std::string empty;  ///< when empty_cache() is called: none, inference, training, all, names
  double fraction = 0;
  Bytes peak_reserved, peak_allocated;
  std::uint64_t driver_allocs = 0, driver_frees = 0, retries = 0;
  bool out_of_memory = false;
  Kind kind = Kind::kTried;
  Bytes least_reserved{}, most_reserved{};  ///< over the simulated address layouts; zero if unknown
  std::string why{};                        ///< for advice: its effect
  std::vector<std::string> how{};           ///< for advice: lines to paste, and warnings

  [[nodiscard]] std::string label() const;
  /// "12.3 GiB", or "12.31 GiB to 12.6 GiB" if the address layouts give different results.
  [[nodiscard]] std::string reserved_text() const;
  [[nodiscard]] Json to_json() const;
};

/// False for a truncated history whose peak depends on missing events: settings can then be
/// compared only with each other.
[[nodiscard]] bool compares_with_recorded(const Json& replay);
/// The recorded settings if comparable entries follow, then "what_if", then "advice".
[[nodiscard]] Result<std::vector<SettingOutcome>> read_settings(const Json& replay);
[[nodiscard]] std::string settings_text(const std::vector<SettingOutcome>& settings);

/// Fails unless `replay` was made from `device`. `replay_name` and `name` are the file and the
/// recording, for messages.
[[nodiscard]] Status check_same_recording(const Json& replay, const std::string& replay_name,
                                          const trace::DeviceRecording& device,
                                          const History& history, const std::string& name);

}  // namespace neap::report

// What `neap replay --json` found, as a report shows it: the recorded settings, those that were
// tried, and the advice.
//
// Threads   plain data.
// Failure   kCorrupt: the JSON is no result of a replay; the message names the key.
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

/// What a replay found for one setting.
struct SettingOutcome {
  enum class Kind { kTried, kRecorded, kAdvised };
  std::string conf;   ///< PYTORCH_CUDA_ALLOC_CONF
  std::string empty;  ///< when empty_cache() was called: none, inference, training, all, names
  double fraction = 0;
  Bytes peak_reserved, peak_allocated;
  std::uint64_t driver_allocs = 0, driver_frees = 0, retries = 0;
  bool out_of_memory = false;
  Kind kind = Kind::kTried;
  Bytes least_reserved{}, most_reserved{};  ///< over the address orders; zero when not known
  std::string why{};                        ///< of advice: what it does
  std::vector<std::string> how{};           ///< of advice: lines to paste, and warnings

  [[nodiscard]] std::string label() const;
  /// "12.3 GiB", or "12.31 GiB to 12.6 GiB" where the address orders disagree.
  [[nodiscard]] std::string reserved_text() const;
  [[nodiscard]] Json to_json() const;
};

/// False for a cut history whose peak depends on what came before it: settings compare with each
/// other only.
[[nodiscard]] bool compares_with_recorded(const Json& replay);
/// The recorded settings when other entries follow that compare with them, then "what_if", then
/// "advice".
[[nodiscard]] Result<std::vector<SettingOutcome>> read_settings(const Json& replay);
[[nodiscard]] std::string settings_text(const std::vector<SettingOutcome>& settings);

/// Fails unless `replay`, the file `replay_name`, was made from `device`, the recording `name`.
[[nodiscard]] Status check_same_recording(const Json& replay, const std::string& replay_name,
                                          const trace::DeviceRecording& device,
                                          const History& history, const std::string& name);

}  // namespace neap::report

// The files of a training run that `neap report RUN` reads, and the record of one closed phase.
//
//   memory.ntrace   events of the device, the arena and the pools (trace::Writer)
//   plan.json       plan::MemoryPlan::to_json of the plan that the run executed
//   phases.jsonl    one PhaseRecord a closed phase
//   metrics.jsonl   one object a step: {"step": 3, "actor/ppo_kl": 0.001, ...}
//   tensorboard/    the same as event files
//   validation.jsonl  metrics and samples of each validation
//   warnings.jsonl  signs that the training goes wrong: {"step", "sign", "warning"}
//   rollouts.jsonl  responses with their scores (rollout_log.h)
//   report.html     the report; written at the end of the run and by `neap report RUN`
//
// Threads   values, and one owner at a time for the writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "report/step_log.h"

namespace neap::report {

inline constexpr std::string_view kTraceFile = "memory.ntrace";
inline constexpr std::string_view kPlanFile = "plan.json";
inline constexpr Bytes kMostPlanBytes = 256_MiB;
inline constexpr std::string_view kPhasesFile = "phases.jsonl";
inline constexpr std::string_view kMetricsFile = "metrics.jsonl";
inline constexpr std::string_view kTensorboardFolder = "tensorboard";
inline constexpr std::string_view kValidationFile = "validation.jsonl";
inline constexpr std::string_view kWarningsFile = "warnings.jsonl";
inline constexpr std::string_view kReportFile = "report.html";

/// A move before a phase or behind it, as it was executed.
struct MoveLine {
  std::string kind;  ///< "pause", "resume", "backup"
  std::string tag;
  Bytes copied;                ///< over the link
  double copy_seconds = 0;     ///< of its copies
  double visible_seconds = 0;  ///< that were waited for; between phases all of them
  bool behind = false;         ///< while the phase computed
};
/// What the slots of a tag took from the host and gave back within a phase.
struct StreamedLine {
  std::string tag;
  std::string what;  ///< "weights", "gradients", "inputs", "states"
  Bytes to_device, to_host;
  double visible_seconds =
      0;  ///< that the device's work waited for it, part of the phase's seconds
  // Of what rests on disk; seconds are those that the program waited, a part of the phase's, too.
  Bytes disk_read{}, disk_written{};
  double disk_seconds = 0;
};
/// What one phase cost, measured. Bytes are peaks within the phase; the fields are those of
/// bridge::PhaseMeasurement.
struct PhaseRecord {
  std::uint64_t step = 0;
  std::string phase;
  Bytes persistent, transient_allocated, transient_reserved, peak, fragmentation_at_peak;
  Bytes moved;  ///< over the link: moves and what slots take and give
  double seconds = 0;
  double move_seconds = 0;  ///< waited for, before the phase and at its end
  std::vector<MoveLine> moves{};
  std::vector<StreamedLine> streamed{};
  Bytes peer_bytes{};  ///< of tensors that ranks added up
  /// Of the sums, and of these, those that nothing hid.
  double peer_seconds = 0, peer_visible_seconds = 0;
  /// Moves and streamed bytes are those of the plan: tags, order, directions and bytes.
  bool as_planned = false;
  /// Peak by the plan that it ran under; unset: that plan has no such phase, or the record is of an
  /// older version.
  std::optional<Bytes> planned{};

  [[nodiscard]] Json to_json() const;  ///< without the step
  [[nodiscard]] static Result<PhaseRecord> from_json(const Json& json);
};

/// phases.jsonl, growing.
class PhaseLog {
 public:
  [[nodiscard]] static Result<PhaseLog> open(const std::filesystem::path& folder,
                                             std::optional<std::int64_t> resume_step);
  Status append(const PhaseRecord& record) { return log_.append(record.step, record.to_json()); }
  Status sync() { return log_.sync(); }
  [[nodiscard]] static Result<std::vector<PhaseRecord>> read(const std::filesystem::path& folder);

 private:
  explicit PhaseLog(StepLog log) : log_(std::move(log)) {}
  StepLog log_;
};

}  // namespace neap::report

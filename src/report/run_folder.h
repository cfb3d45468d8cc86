// The files of a training run that `neap report RUN` reads, and the record of one closed phase.
//
//   memory.ntrace   events of the device, the arena and the pools (trace::Writer)
//   plan.json       plan::MemoryPlan::to_json of the plan that the run executed
//   phases.jsonl    one PhaseRecord per closed phase
//   metrics.jsonl   one object per step: {"step": 3, "actor/ppo_kl": 0.001, ...}
//   tensorboard/    the same as event files
//   validation.jsonl  metrics and samples of each validation
//   warnings.jsonl  health checks that failed: {"step", "sign", "warning"}
//   rollouts.jsonl  responses with their scores (rollout_log.h)
//   report.html     the report; written at the end of the run and by `neap report RUN`
//
// Threads   values; the writer has one owner at a time.
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
inline constexpr std::string_view kPhasesFile = "phases.jsonl";
inline constexpr std::string_view kMetricsFile = "metrics.jsonl";
inline constexpr std::string_view kTensorboardFolder = "tensorboard";
inline constexpr std::string_view kValidationFile = "validation.jsonl";
inline constexpr std::string_view kWarningsFile = "warnings.jsonl";
inline constexpr std::string_view kReportFile = "report.html";

/// A move as it was executed, between phases or overlapped with one.
struct MoveLine {
  std::string kind;  ///< "pause", "resume", "backup"
  std::string tag;
  Bytes copied;                ///< over the link
  double copy_seconds = 0;     ///< duration of its copies
  double visible_seconds = 0;  ///< exposed time; between phases all of it
  bool behind = false;         ///< overlapped with the phase's computation
};
/// Data of a tag that were loaded from the host and written back within a phase.
struct StreamedLine {
  std::string tag;
  std::string what;  ///< "weights", "gradients", "inputs", "states"
  Bytes to_device, to_host;
  double visible_seconds = 0;  ///< exposed time, part of the phase's seconds
  // Bytes of data offloaded to disk. The exposed time is also part of the phase's seconds.
  Bytes disk_read{}, disk_written{};
  double disk_seconds = 0;
};
/// Measured cost of one phase. Bytes are peaks within the phase. The fields are those of
/// bridge::PhaseMeasurement.
struct PhaseRecord {
  std::uint64_t step = 0;
  std::string phase;
  Bytes persistent, transient_allocated, transient_reserved, peak, fragmentation_at_peak;
  Bytes moved;  ///< over the link: moves, and loads and stores within the phase
  double seconds = 0;
  double move_seconds = 0;  ///< exposed time, before the phase and at its end
  std::vector<MoveLine> moves{};
  std::vector<StreamedLine> streamed{};
  Bytes peer_bytes{};  ///< bytes of tensors that ranks exchanged
  /// Duration of the communication, and its exposed part.
  double peer_seconds = 0, peer_visible_seconds = 0;
  /// Whether moves and streamed bytes are the plan's: tags, order, directions and bytes.
  bool as_planned = false;
  /// Peak in the plan that it ran under. Unset: that plan lacks the phase, or an older version
  /// wrote the record.
  std::optional<Bytes> planned{};

  [[nodiscard]] Json to_json() const;  ///< without the step
  [[nodiscard]] static Result<PhaseRecord> from_json(const Json& json);
};

/// Appends to phases.jsonl.
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

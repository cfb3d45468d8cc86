// The checkpoints of a running training, and its output folder, which may be moved or removed at
// any time. A run whose folder is lost saves in another one before it ends.
//
// Ranks     all call the same functions.
// Threads   the run's.
// Failure   Error or CollectiveError, with a message that names the remaining checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rlhf/run/prepared_run.h"
#include "rlhf/run/run_start.h"
#include "rlhf/trainer/run_output.h"
#include "train/background_save.h"
#include "train/host_copies.h"

namespace neap::rlhf {

class RunCheckpoints {
 public:
  RunCheckpoints(RunStart& start, PreparedRun& prepared, RunOutput& files)
      : start_(start), prepared_(prepared), files_(files) {}

  /// Saves the last step. `goes_on`: more steps follow, so that a copy of the models can be written
  /// meanwhile.
  void save(bool goes_on);
  /// Saves the last step if it is not saved yet. Returns when it is on disk.
  void save_last();
  /// Throws the failure of a checkpoint that has ended in the background.
  void poll();
  /// Waits for the checkpoint in the background, in a run that fails for another reason.
  void finish();
  /// Follows a folder that was moved. If it is lost, saves in another one and ends the run with an
  /// error.
  void follow_output();
  /// Seconds that training waited for checkpoints since the last call.
  [[nodiscard]] double take_seconds();

  // ---- for messages ----
  /// Says in which folder the last step is saved. `but` names missing parts.
  [[nodiscard]] std::string saved_steps(std::string_view but = "") const;
  /// The error of a stopped run. `kept` names its checkpoint.
  [[nodiscard]] Status stopped(const Status& why, const std::string& kept) const;

 private:
  /// Memory for a copy of the models; null: not planned, or an earlier allocation failed.
  [[nodiscard]] train::HostCopies* copies();
  void note_without_copy(const Status& why);
  /// `work` writes a checkpoint or waits for one.
  void at_checkpoint(const std::function<void()>& work);
  [[nodiscard]] bool output_is_lost();
  void share_output();
  [[noreturn]] void rescue();
  /// The checkpoint that remains when the run ends.
  [[nodiscard]] std::string what_is_left();
  /// "the same command resumes from there"; or the key to set if the output folder was moved.
  [[nodiscard]] std::string how_to_resume() const;
  void save_now(bool goes_on);

  RunStart& start_;
  PreparedRun& prepared_;
  RunOutput& files_;
  std::filesystem::path shared_output_{start_.output.path()};  // that every rank knows
  std::optional<train::HostCopies> copies_;
  bool copies_fit_ = true;
  train::BackgroundSave background_{start_.ranks};
  double seconds_ = 0;
  // The step of the last checkpoint.
  std::int64_t saved_ = start_.resume.found ? start_.resume.step() : -1;
  bool rescuing_ = false;
};

}  // namespace neap::rlhf

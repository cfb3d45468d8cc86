// One training run: the preparation before its first step (training_start.cpp), its steps and
// checkpoints (training_steps.cpp), and their order (run.cpp).
//
// Threads   one at a time.
// Failure   as rlhf::run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/status.h"
#include "bridge/runtime.h"
#include "rlhf/data/job_data.h"
#include "rlhf/run/run.h"
#include "rlhf/trainer/best_checkpoint.h"
#include "rlhf/trainer/output_folder.h"
#include "rlhf/trainer/processor_share.h"
#include "rlhf/trainer/run_output.h"
#include "rlhf/trainer/stop_target.h"
#include "rlhf/trainer/trainer.h"
#include "spec/ranks/rank_kinds.h"
#include "text/tokenizer/tokenizer.h"
#include "trace/recorder.h"
#include "train/background_save.h"
#include "train/checkpoint.h"
#include "train/checkpoint_files.h"
#include "train/host_copies.h"

namespace neap::rlhf {

class TrainingRun {
 public:
  TrainingRun(const spec::Job& job, const plan::DeviceChoice& device, parallel::Communicator& ranks)
      : job_(job),
        kinds_(spec::rank_kinds(job.model_meshes())),
        device_(device),
        ranks_(ranks),
        output_(job.output_folder()),
        folders_{output_.path(), ranks.first()
                                     ? output_.path()
                                     : output_.path() / "ranks" / std::to_string(ranks.rank())} {}

  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;
  ~TrainingRun() {
    std::error_code ignored;
    if (recorder_ && !files_) std::filesystem::remove(recorder_->path(), ignored);
  }

  Outcome execute();
  [[nodiscard]] Status last_oom() const { return runtime_ ? runtime_->last_oom() : ok_status(); }

 private:
  void compare_jobs();
  void open_copy_lanes();
  void compare_plans();
  void compare_plans_of(spec::ModelId model);
  void add_stage_waits();
  [[nodiscard]] bool already_done();
  void find_state();
  [[nodiscard]] std::optional<bool> is_own(const std::filesystem::path& checkpoint) const;
  void refuse_other_runs() const;
  [[nodiscard]] bool is_finished() const;
  [[nodiscard]] std::int64_t count_steps();
  void read_data();
  void prepare();
  void load();
  void make_plan();
  [[nodiscard]] std::string whose_plan() const;
  void keep_states();
  void check_output() const;
  void open_trace();
  void open_output();
  void build();
  void resume();
  void show_progress();
  void loop();
  [[noreturn]] void keep_steps_before(const StepFailure& failure);
  void one_step();
  void note_processor_share(double cpu_seconds, double seconds);
  void follow_output();
  /// Every rank calls it, and follows a folder that was moved.
  [[nodiscard]] bool output_is_lost();
  void share_output();
  void end_where_updates_fail();
  void write_logs(const std::function<void()>& write);
  void end_where_logs_fail();
  /// Saves in another folder, and ends the run with an error.
  [[noreturn]] void rescue();
  void validate();
  void note_validation(const Metrics& metrics);
  /// `goes_on`: more steps follow, so that a copy of the models can be written meanwhile.
  void save(bool goes_on);
  /// Memory for that copy; null: not planned, or an earlier allocation failed.
  [[nodiscard]] train::HostCopies* copies();
  void note_without_copy(const Status& why);
  /// Saves the last step if it is not saved yet. Returns when it is on disk.
  void save_last();
  /// Waits for the checkpoint in the background, in a run that fails for another reason.
  void finish_save();
  /// `work` writes a checkpoint or waits for one. If it fails, the message names the remaining
  /// checkpoint.
  void at_checkpoint(const std::function<void()>& work);
  /// For messages: the checkpoint that remains when the run ends.
  [[nodiscard]] std::string what_is_left();
  /// "the same command resumes from there"; or the key to set if the output folder was moved.
  [[nodiscard]] std::string how_to_resume() const;
  /// For messages: the folder of the last step's checkpoint. `but` says what is missing in it.
  [[nodiscard]] std::string saved_steps(std::string_view but = "") const;
  [[nodiscard]] Status stopped(const Status& why, const std::string& kept) const;
  void finish();

  spec::Job job_;  // with the plan's choices
  const std::vector<spec::RankKind> kinds_;
  const plan::DeviceChoice& device_;
  ProcessorShare processor_share_{device_.target.threads};
  parallel::Communicator& ranks_;
  std::optional<parallel::JobGroups> groups_;
  OutputFolder output_;                                  // locked by the first rank
  std::filesystem::path shared_output_{output_.path()};  // that every rank knows
  RunFolders folders_;
  Json identity_;  // of the job as configured
  std::optional<train::FoundCheckpoint> found_;
  Json state_ = Json::object();  // from the checkpoint to resume from
  std::int64_t total_steps_ = 0;
  plan::MemoryPlan plan_;
  std::vector<double> kind_peaks_;  // planned peak of each kind of rank
  std::unique_ptr<trace::Recorder> recorder_;
  std::unique_ptr<bridge::Runtime> runtime_;
  // Entered from the first weights to the end.
  std::optional<bridge::DeviceContext::Entered> entered_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<TextContext> texts_;
  std::optional<reward::RewardSet> rewards_;
  std::optional<JobData> data_;
  std::optional<Progress> progress_;  // on the first rank
  std::optional<Context> context_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<RunOutput> files_;
  BestCheckpoint best_{job_.trainer};
  StopTarget stop_{job_.trainer};
  std::optional<train::HostCopies> copies_;
  bool copies_fit_ = true;
  train::BackgroundSave background_{ranks_};
  double save_seconds_ = 0;  // that training waited for checkpoints since the last step
  std::int64_t step_ = 0;    // finished steps
  std::int64_t saved_ = -1;
  std::int64_t validated_ = -1;
  Status log_failure_;
  double skipped_in_a_row_ = 0;  // at the end of the last step; the maximum over models
  bool interrupted_ = false;
};

}  // namespace neap::rlhf

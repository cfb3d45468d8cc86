// The start of a run: compares ranks, finds the checkpoint, plans, builds models and loads them.
#include <algorithm>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/run_collectively.h"
#include "plan/counting/pipeline_waits.h"
#include "plan/search/common_choices.h"
#include "report/metrics.h"
#include "report/run_folder.h"
#include "rlhf/run/training_run.h"
#include "rlhf/trainer/agreed_plan.h"
#include "rlhf/trainer/kept_steps.h"
#include "rlhf/trainer/run_state.h"
#include "spec/model/layout.h"
#include "spec/recipe/job_change.h"
#include "spec/recipe/job_model.h"

namespace neap::rlhf {
namespace fs = std::filesystem;

// If ranks trained different jobs, they would sum unrelated gradients or wait for each other
// forever. Only device settings may differ.
void TrainingRun::compare_jobs() {
  std::vector<parallel::Communicator::NamedText> texts;
  for (const auto& [path, value] : job_.bind().values()) {
    if (path.rfind("device.", 0) != 0) texts.push_back({path, json_text(value)});
  }
  ranks_.expect_same(texts);
}

// Ranks with other measured throughput could choose other plans. Ranks whose folders hold other
// models have tags of other sizes.
void TrainingRun::compare_plans() {
  std::string choices;
  for (const std::string& text : spec::assignments(plan_.changes)) choices += text + " ";
  ranks_.expect_same(
      {{"what the plan chose of the job's keys (memory.allow; run `neap doctor` on every machine "
        "or on none)",
        choices}});
  for (const spec::ModelId model : job_.models()) compare_plans_of(model);
  const std::vector<double> peaks = ranks_.join({static_cast<double>(plan_.peak.count())});
  for (const spec::RankKind& kind : kinds_)
    kind_peaks_.push_back(peaks.at(static_cast<std::size_t>(kind.first)));
}

// Stages of a model differ. Ranks that share its passes must agree on recomputation, because
// collectives run between recomputed operations.
void TrainingRun::compare_plans_of(spec::ModelId model) {
  const parallel::Groups& groups = groups_->of(model);
  std::vector<parallel::Communicator::NamedText> texts;
  if (plan::is_chosen_alike(job_, model)) {
    for (const plan::TagPlan& tag : plan_.tags)
      if (tag.id.model == model)
        texts.push_back({"the size of " + tag.name(), to_string(tag.bytes)});
  } else {
    const spec::JobModel own =
        value_or_throw(spec::resolve(job_, spec::describe(job_), model, ranks_.rank()));
    std::int64_t elements = 0;
    for (const spec::FlatUnit& unit : spec::flat_layout(own.shape, own.head))
      elements += unit.elements;
    texts.push_back(
        {format("the number of parameters of {}", own.name()), std::to_string(elements)});
  }
  groups.data().expect_same(texts);
  for (const plan::ActivationPlan& kept : plan_.activations) {
    if (kept.model != model) continue;
    std::vector<std::string> again;
    for (const auto& [tensor, blocks] : kept.recomputed())
      again.push_back(format("{} {}", to_string(tensor), blocks));
    texts.push_back({format("what layers of {} recompute", to_string(model)),
                     again.empty() ? "nothing" : joined(again, ", ")});
  }
  groups.tensor().expect_same(texts);
  groups.context().expect_same(texts);
}

// Every rank has planned only its own stages, so the waits between stages are added here.
void TrainingRun::add_stage_waits() {
  if (kinds_.size() == 1) return;
  std::vector<double> numbers;
  std::ptrdiff_t chunks = 0;
  for (const plan::StageWork& work : plan::stage_work(job_, plan_)) {
    numbers.insert(numbers.end(), {work.seconds, work.sums});
    numbers.insert(numbers.end(), work.forward.begin(), work.forward.end());
    numbers.insert(numbers.end(), work.backward.begin(), work.backward.end());
    numbers.insert(numbers.end(), work.weights.begin(), work.weights.end());
    chunks = std::ssize(work.forward);
  }
  const std::vector<double> all = ranks_.join(numbers);
  const auto each = std::ssize(numbers);
  std::vector<std::vector<plan::StageWork>> work;
  for (const spec::RankKind& kind : kinds_) {
    std::vector<plan::StageWork>& of = work.emplace_back();
    const auto begin = all.begin() + kind.first * each;
    for (auto at = begin; at != begin + each; at += 2 + 3 * chunks) {
      const auto forward = at + 2, backward = forward + chunks, weights = backward + chunks;
      of.push_back(
          {at[0], at[1], {forward, backward}, {backward, weights}, {weights, weights + chunks}});
    }
  }
  const plan::StagedStep step = value_or_throw(plan::run_stages(job_, device_.target, plan_, work));
  plan::add_waits(job_, step.waits.at(spec::kind_of(kinds_, ranks_.rank())), plan_);
}

bool TrainingRun::already_done() {
  parallel::run_collectively(ranks_, [&] {
    if (ranks_.first()) output_.lock();
    find_state();
    total_steps_ = count_steps();
    stop_.restore(state_.value("stop", Json()), found_ ? found_->step : 0);
    if (is_finished()) check_finished(state_, *found_, job_, identity_);
  });
  ranks_.expect_same(found_ ? found_->step : -1,
                     format("The newest checkpoint's step in {} (all machines have to share the "
                            "folder; -1 is none)",
                            output_.path().string()));
  ranks_.expect_same(total_steps_, "The number of steps");
  if (stop_.reached()) {
    log::info(
        format("{} is done: {}. To continue, set another trainer.stop_value or none; to start "
               "anew, set another trainer.default_local_dir.",
               output_.path().string(), stop_.text()));
    return true;
  }
  if (!is_finished()) return false;
  log::info(
      format("{} is at step {} of {}: done. To continue, raise trainer.total_training_steps or "
             "trainer.total_epochs; to start anew, set another "
             "trainer.default_local_dir.",
             output_.path().string(), found_->step, total_steps_));
  return true;
}

bool TrainingRun::is_finished() const {
  return found_ && (stop_.reached() || found_->step >= total_steps_);
}

// Finds the checkpoint to resume from, if any, and reads its state.
void TrainingRun::find_state() {
  found_ = train::find_checkpoint(output_.path(), job_.trainer.resume_mode,
                                  job_.resolve(job_.trainer.resume_mode), check_whole);
  identity_ = identity_of(job_);
  if (!found_) return refuse_other_runs();
  if (ranks_.first() && !found_->warning.empty()) log::warn(found_->warning);
  try {
    state_ = read_run_state(found_->folder);
    train::check_files(found_->folder);
  } catch (const Error& e) {
    throw Error(broken_checkpoint(e.status(), *found_));
  }
  check_task(state_, found_->folder, job_);
  if (state_.contains("run")) identity_["run"] = state_["run"];
  refuse_other_runs();
}

std::optional<bool> TrainingRun::is_own(const fs::path& checkpoint) const {
  return is_of_run(checkpoint, identity_, found_ ? state_ : Json());
}

// This run would replace other runs' checkpoints of the same steps.
void TrainingRun::refuse_other_runs() const {
  for (const train::FoundCheckpoint& each : train::all_checkpoints(output_.path())) {
    // An unreadable checkpoint may be a damaged one of the run that is resumed.
    if (is_own(each.folder).value_or(found_.has_value())) continue;
    throw Error(ErrorCode::kAlreadyExists,
                format("{} holds a run already: this run did not write {}. Set "
                       "trainer.default_local_dir to another folder{}",
                       output_.path().string(), each.folder.filename().string(),
                       job_.trainer.resume_mode == "disable"
                           ? ", or trainer.resume_mode = \"auto\" to resume"
                           : ""));
  }
}

// With epochs, the number of steps depends on the rows. Without a number, kept experience has that
// of its run.
std::int64_t TrainingRun::count_steps() {
  if (job_.reads_experience()) {
    const KeptSteps kept(job_.resolve(job_.trainer.experience_dir));
    const std::int64_t asked = job_.trainer.total_training_steps;
    const std::int64_t steps = asked > 0 ? asked : kept.schedule().total_steps;
    kept.expect(found_ ? found_->step : 0, steps);
    return steps;
  }
  if (job_.trainer.total_training_steps > 0) return job_.trainer.total_training_steps;
  read_data();
  return job_.trainer.total_epochs * batch_order(job_, *data_).steps_per_epoch();
}

void TrainingRun::read_data() {
  texts_.emplace(open_texts(job_, tokenizer_));
  rewards_.emplace(make_rewards(job_, device_.target.threads));
  data_.emplace(rlhf::read_data(*texts_, reward_check(job_, *rewards_),
                                encoding_threads(device_.target.threads, ranks_.size())));
}

void TrainingRun::make_plan() {
  parallel::run_collectively(ranks_, [&] {
    if (found_) keep_states();
  });
  plan_ = agreed_plan(job_, device_.target, ranks_);
}

// For messages: which ranks the first rank's plan applies to.
std::string TrainingRun::whose_plan() const {
  if (kinds_.size() == 1) return "this is the plan of each";
  std::string peaks;
  for (const double peak : kind_peaks_)
    peaks += format("{}{}", peaks.empty() ? "" : ", ", Bytes(static_cast<std::uint64_t>(peak)));
  const auto most = std::max_element(kind_peaks_.begin(), kind_peaks_.end()) - kind_peaks_.begin();
  if (spec::are_stages(kinds_, job_.model_meshes()))
    return format("peaks of the {} stages: {}; stage {} needs most. This is the plan of stage 1",
                  kinds_.size(), peaks, most + 1);
  return format(
      "peaks of {} groups of ranks, with different stages of models: {}; rank {} needs most. "
      "This is the plan of rank 0",
      kinds_.size(), peaks, kinds_[static_cast<std::size_t>(most)].first);
}

void TrainingRun::prepare() {
  if (ranks_.first()) {
    if (!ranks_.alone())
      print(format("{} ranks over {}; {}\n\n", ranks_.size(), ranks_.name(), whose_plan()));
    print(plan_.to_text() + "\n");
  }
  check_output();
  build();
  if (!found_) return;
  for (const std::string& warning :
       check_run_state(state_, found_->folder, job_, identity_, data_->train))
    if (ranks_.first()) log::warn(warning);
}

void TrainingRun::load() {
  if (found_) {
    resume();
  } else {
    trainer_->load();
  }
}

// Optimizer states keep the type of the checkpoint, so the plan must not choose it again.
void TrainingRun::keep_states() {
  if (!job_.memory.allows(spec::Measure::kBf16States)) return;
  std::erase(job_.memory.allow, spec::Measure::kBf16States);
  spec::apply(saved_choices(state_), job_);
  throw_if_error(job_.validate());
}

void TrainingRun::check_output() const {
  const fs::path metrics = output_.path() / std::string(report::kMetricsFile);
  std::error_code error;
  if (ranks_.first() && job_.trainer.resume_mode == "disable" && fs::exists(metrics, error)) {
    throw Error(ErrorCode::kAlreadyExists,
                format("{} holds a run already; set trainer.default_local_dir to another folder, "
                       "or trainer.resume_mode = \"auto\" to resume",
                       output_.path().string()));
  }
  fs::create_directories(folders_.own, error);
  if (error) {
    throw Error(ErrorCode::kIo,
                format("Cannot create {}: {}", folders_.own.string(), error.message()));
  }
}

void TrainingRun::build() {
  if (!data_) read_data();
  open_trace();
  runtime_ = bridge::Runtime::make(job_, device_, plan_, recorder_.get());
  entered_.emplace(runtime_->context());
  context_.emplace(Context{*texts_, *runtime_, *groups_, *data_, *rewards_, total_steps_});
  trainer_ = make_trainer(*context_);
}

// Uses a temporary name until nothing can fail any more, so that a rejected run keeps an older
// trace.
void TrainingRun::open_trace() {
  if (job_.trainer.trace_max_size.is_zero()) return;
  const fs::path trace = folders_.own / (std::string(report::kTraceFile) + ".new");
  trace::RecorderOptions options;
  options.most_bytes = job_.trainer.trace_max_size;
  recorder_ =
      value_or_throw(trace::Recorder::open(trace, {{"plan", json_text(plan_.to_json())}}, options));
}

void TrainingRun::open_output() {
  // A killed run can leave results without a checkpoint. With "auto" they are overwritten.
  std::optional<std::int64_t> from;
  if (found_) {
    from = found_->step;
  } else if (job_.trainer.resume_mode == "auto") {
    from = -1;
  }
  remove_temporary_files(folders_.own);
  const fs::path trace = folders_.own / std::string(report::kTraceFile);
  if (recorder_) {
    throw_if_error(recorder_->rename(trace));
  } else {
    std::error_code ignored;
    fs::remove(trace, ignored);  // of an earlier process; it does not describe this run's memory
  }
  files_.emplace(job_, folders_, plan_, total_steps_, from);
  // Repairs links after a kill between a checkpoint and its links, or when resuming from an older
  // checkpoint.
  if (ranks_.first() && !job_.trainer.best_metric.empty())
    (void)train::point_best(output_.path(), best_.step());
}

void TrainingRun::resume() {
  try {
    trainer_->restore(found_->folder);
  } catch (const Error& e) {
    throw Error(refused_resume(e.status(), *found_, state_, job_));
  }
  best_.restore(state_.value("best", Json()), output_.path());
  step_ = saved_ = found_->step;
  log::info(
      format("Resuming from {}, step {} of {}", found_->folder.string(), step_, total_steps_));
}

}  // namespace neap::rlhf

// Two jobs in one process, step by step, with the memory that they ask for.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "bridge/runtime.h"
#include "rlhf/data/job_data.h"
#include "rlhf/data/row_encoder.h"
#include "rlhf/run/run.h"
#include "rlhf/trainer/trainer.h"
#include "trace/event.h"

namespace neap::rlhf {

// What libtorch has once a process, or a thread.
struct Settings {
  bridge::TorchSettings installed = bridge::TorchSettings::now();
  bool cudnn = at::globalContext().userEnabledCuDNNSDP();
  bool flash = at::globalContext().userEnabledFlashSDP();
  bool efficient = at::globalContext().userEnabledMemEfficientSDP();
  bool plain = at::globalContext().userEnabledMathSDP();
  friend bool operator==(const Settings&, const Settings&) = default;
};

// What a phase's pool is asked for, in order, with what is set at that moment.
struct Request {
  trace::EventKind kind;
  std::uint64_t size = 0;
  std::string phase;
  std::optional<bridge::TorchSettings> settings;  // of allocations, which the phase's thread makes
  friend bool operator==(const Request&, const Request&) = default;
};

class Requests final : public trace::EventSink {
 public:
  void record(const trace::Event& event) override {
    using trace::EventKind;
    const std::lock_guard lock(mutex_);
    const bool mark = event.kind == EventKind::kPhaseBegin || event.kind == EventKind::kPhaseEnd;
    if (!mark && event.kind > EventKind::kSegmentUnmap) return;
    Request request{event.kind, event.size, std::string(names_.name(mark ? event.name : 0)), {}};
    if (event.kind == EventKind::kAlloc) request.settings = bridge::TorchSettings::now();
    list_.push_back(std::move(request));
  }
  std::uint32_t intern(std::string_view name) override {
    const std::lock_guard lock(mutex_);
    return names_.intern(name);
  }
  [[nodiscard]] const std::vector<Request>& list() const { return list_; }

 private:
  std::mutex mutex_;
  trace::NameTable names_;
  std::vector<Request> list_;
};

// A runtime that calls `between` whenever a phase has closed.
class Interrupted final : public bridge::Runtime {
 public:
  Interrupted(std::unique_ptr<Runtime> runtime, std::function<void()> between)
      : runtime_(std::move(runtime)), between_(std::move(between)) {}

  [[nodiscard]] at::Device device() const override { return runtime_->device(); }
  [[nodiscard]] at::ScalarType compute_dtype() const override { return runtime_->compute_dtype(); }
  [[nodiscard]] const plan::MemoryPlan& plan() const override { return runtime_->plan(); }
  [[nodiscard]] const bridge::DeviceContext& context() const override {
    return runtime_->context();
  }
  [[nodiscard]] at::Tensor region(spec::TagId tag, std::string_view name,
                                  at::ScalarType dtype) override {
    return runtime_->region(tag, name, dtype);
  }
  [[nodiscard]] bridge::SlotPart part(spec::TagId tag, std::string_view name) const override {
    return runtime_->part(tag, name);
  }
  [[nodiscard]] bridge::StreamedBlocks& streamed_blocks(spec::TagId tag) override {
    return runtime_->streamed_blocks(tag);
  }
  [[nodiscard]] bridge::StreamedStates* streamed_states(spec::TagId tag) override {
    return runtime_->streamed_states(tag);
  }
  [[nodiscard]] bridge::StreamedSlices* streamed_slices(spec::TagId tag) override {
    return runtime_->streamed_slices(tag);
  }
  [[nodiscard]] std::unique_ptr<Scope> hold(const std::vector<spec::TagId>& tags) override {
    return runtime_->hold(tags);
  }
  [[nodiscard]] std::unique_ptr<Scope> phase(spec::PhaseId id) override {
    return std::make_unique<Phase>(runtime_->phase(id), between_);
  }
  void note_peers(const bridge::PeerUse& use) override { runtime_->note_peers(use); }
  [[nodiscard]] std::vector<bridge::PhaseMeasurement> take_measurements() override {
    return runtime_->take_measurements();
  }
  [[nodiscard]] Bytes peak() const override { return runtime_->peak(); }
  [[nodiscard]] Bytes peak_allocated() const override { return runtime_->peak_allocated(); }
  [[nodiscard]] Status last_oom() const override { return runtime_->last_oom(); }
  [[nodiscard]] arena::Arena& arena() override { return runtime_->arena(); }

 private:
  class Phase final : public Scope {
   public:
    Phase(std::unique_ptr<Scope> scope, const std::function<void()>& between)
        : scope_(std::move(scope)), between_(between) {}
    [[nodiscard]] Status close() override {
      Status closed = scope_->close();
      between_();
      return closed;
    }

   private:
    std::unique_ptr<Scope> scope_;
    const std::function<void()>& between_;
  };
  std::unique_ptr<Runtime> runtime_;
  std::function<void()> between_;
};

struct JobSetup {
  const char* config;  // of examples/arithmetic
  std::vector<std::string> overrides;
  std::int64_t threads = 1;
  std::string layers = "2";
  Bytes granularity = 2_MiB;  // of the device
};

// 12 phases in two steps.
inline JobSetup float_grpo() {
  return {"grpo.toml",
          {"trainer.total_training_steps=2", "device.dtype=float32", "data.train_batch_size=8",
           "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=4",
           "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
           "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
           "trainer.deterministic=false", "memory.optimizer_offload=phase_split",
           "device.memory=10MiB", "reward.functions=[{kind=\"regex\", pattern=\"[0-4]\"}]"},
          1};
}
// Two phases a step. Blocks, their gradients and the optimizer states stream through slots.
inline JobSetup half_sft() {
  return {"sft.toml",
          {"trainer.total_training_steps=3", "device.dtype=bfloat16", "device.memory=6MiB",
           "trainer.deterministic=true", "memory.alloc_conf=expandable_segments:True",
           "trainer.stop_metric=", "data.train_batch_size=8", "data.micro_batch_size_per_gpu=8"},
          2,
          "6",
          64_KiB};
}

using Files = std::map<std::string, std::string>;  // contents

// Weights and optimizer states.
inline Files tensors_in(const std::filesystem::path& folder) {
  Files out;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors")
      out[std::filesystem::relative(file.path(), folder).string()] =
          value_or_throw(read_file(file.path()));
  }
  return out;
}

// The example's model with the layers of the job.
inline void write_model(const std::filesystem::path& example, const std::string& layers,
                        const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy(example, folder);
  std::string config = value_or_throw(read_file(example / "config.json"));
  const std::string key = "\"num_hidden_layers\": ";
  config.replace(config.find(key) + key.size(), 1, layers);
  throw_if_error(write_file_atomic(folder / "config.json", config));
}

inline spec::Job load_job(const JobSetup& setup, const std::filesystem::path& output) {
  const std::filesystem::path folder =
      std::filesystem::path(NEAP_SOURCE_DIR) / "examples/arithmetic";
  write_model(folder / "model", setup.layers, output / "model");
  std::vector<std::string> overrides = {
      "device.kind=cpu",
      "data.val_files=[]",
      "trainer.test_freq=-1",
      "trainer.best_metric=",
      "data.cache_dir=" + (output / "cache").string(),
      "actor_rollout_ref.model.path=" + (output / "model").string(),
      "trainer.default_local_dir=" + output.string()};
  overrides.insert(overrides.end(), setup.overrides.begin(), setup.overrides.end());
  spec::Job job;
  throw_if_error(spec::Job::load(folder / setup.config, overrides, job));
  return job;
}

inline Launch launch_of(const JobSetup& setup, const spec::Job& job) {
  Launch launch{bridge::choose_run_device(job.device), parallel::make_single()};
  launch.device.target.threads = setup.threads;
  launch.device.target.granularity = setup.granularity;
  return launch;
}

// The parts of a run from its first weights to its last step, in the hands of the test.
class SteppedJob {
 public:
  SteppedJob(const JobSetup& setup, std::filesystem::path output, std::function<void()> between)
      : output_(std::move(output)),
        job_(load_job(setup, output_)),
        launch_(launch_of(setup, job_)),
        groups_(*launch_.ranks, job_) {
    const plan::MemoryPlan plan = value_or_throw(plan::make_plan(job_, launch_.device.target));
    spec::apply(plan.changes, job_);
    texts_.emplace(open_texts(job_, tokenizer_));
    rewards_.emplace(make_rewards(job_, setup.threads));
    data_.emplace(read_data(*texts_, reward_check(job_, *rewards_), 1));
    runtime_ = std::make_unique<Interrupted>(
        bridge::Runtime::make(job_, launch_.device, plan, &requests_), std::move(between));
    context_.emplace(
        Context{*texts_, *runtime_, groups_, *data_, *rewards_, job_.trainer.total_training_steps});
    trainer_ = make_trainer(*context_);
    trainer_->load();
  }

  [[nodiscard]] bool streams() const {
    return std::ranges::any_of(
               runtime_->plan().tags,
               [](const plan::TagPlan& tag) { return !tag.hosted.gradients.empty(); }) &&
           std::ranges::any_of(runtime_->plan().tags,
                               [](const plan::TagPlan& tag) { return !tag.hosted.states.empty(); });
  }
  [[nodiscard]] bool done() const { return step_ == job_.trainer.total_training_steps; }
  void step() {
    const bridge::DeviceContext::Entered entered(runtime_->context());
    for (const auto& [name, value] : trainer_->train_step(step_)) {
      const bool timed = name.starts_with("timing_s/") || name.starts_with("perf/");
      if (!timed) metrics_.emplace_back(name, value);
    }
    ++step_;
  }
  struct Results {
    std::vector<std::pair<std::string, double>> metrics;
    std::vector<Request> requests;
    Bytes peak;
    Files files;
  };
  [[nodiscard]] Results results() {
    const std::filesystem::path folder = output_ / "stepped";
    std::filesystem::create_directories(folder);
    train::SavedFiles files(context_->ranks);
    trainer_->save(folder, files);
    files.commit(1);
    return {metrics_, requests_.list(), runtime_->peak(), tensors_in(folder)};
  }

 private:
  std::filesystem::path output_;
  spec::Job job_;
  Launch launch_;
  parallel::JobGroups groups_;
  Requests requests_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<TextContext> texts_;
  std::optional<reward::RewardSet> rewards_;
  std::optional<JobData> data_;
  std::unique_ptr<bridge::Runtime> runtime_;
  std::optional<Context> context_;
  std::unique_ptr<Trainer> trainer_;
  std::int64_t step_ = 0;
  std::vector<std::pair<std::string, double>> metrics_;
};
using Results = SteppedJob::Results;

}  // namespace neap::rlhf

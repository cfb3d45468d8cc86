// Two jobs of one process, with other types, threads, kernels and pools: one after the other and phase by phase in turns,
// each computes what it computes alone, and libtorch keeps the settings that the process had.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
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
#include "bridge/no_autograd.h"
#include "bridge/runtime.h"
#include "rlhf/data/job_data.h"
#include "rlhf/data/row_encoder.h"
#include "rlhf/run/run.h"
#include "rlhf/trainer/trainer.h"
#include "trace/event.h"

namespace neap::rlhf {
namespace {

namespace fs = std::filesystem;

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
JobSetup float_grpo() {
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
JobSetup half_sft() {
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
Files tensors_in(const fs::path& folder) {
  Files out;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors")
      out[fs::relative(file.path(), folder).string()] = value_or_throw(read_file(file.path()));
  }
  return out;
}

// The example's model with the layers of the job.
void write_model(const fs::path& example, const std::string& layers, const fs::path& folder) {
  fs::create_directories(folder);
  fs::copy(example, folder);
  std::string config = value_or_throw(read_file(example / "config.json"));
  const std::string key = "\"num_hidden_layers\": ";
  config.replace(config.find(key) + key.size(), 1, layers);
  throw_if_error(write_file_atomic(folder / "config.json", config));
}

spec::Job load_job(const JobSetup& setup, const fs::path& output) {
  const fs::path folder = fs::path(NEAP_SOURCE_DIR) / "examples/arithmetic";
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

Launch launch_of(const JobSetup& setup, const spec::Job& job) {
  Launch launch{bridge::choose_run_device(job.device), parallel::make_single()};
  launch.device.target.threads = setup.threads;
  launch.device.target.granularity = setup.granularity;
  return launch;
}

// The parts of a run from its first weights to its last step, in the hands of the test.
class SteppedJob {
 public:
  SteppedJob(const JobSetup& setup, fs::path output, std::function<void()> between)
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
    const fs::path folder = output_ / "stepped";
    fs::create_directories(folder);
    train::SavedFiles files(context_->ranks);
    trainer_->save(folder, files);
    files.commit(1);
    return {metrics_, requests_.list(), runtime_->peak(), tensors_in(folder)};
  }

 private:
  fs::path output_;
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

class TwoJobs : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_);
    at::set_num_threads(3);  // as no job has
    before_.emplace();
    allocator_ = c10::GetCPUAllocator();
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] fs::path folder() { return root_ / std::to_string(folders_++); }
  [[nodiscard]] Results alone(const JobSetup& setup) {
    SteppedJob job(setup, folder(), [] {});
    while (!job.done()) job.step();
    return job.results();
  }
  [[nodiscard]] Files run_whole(const JobSetup& setup) {
    const fs::path output = folder();
    const spec::Job job = load_job(setup, output);
    EXPECT_EQ(run(job, launch_of(setup, job)), Outcome::kDone);
    return tensors_in(output / ("global_step_" + std::to_string(job.trainer.total_training_steps)));
  }
  void expect_settings_of_the_process() const {
    EXPECT_TRUE(Settings() == *before_);
    EXPECT_EQ(c10::GetCPUAllocator(), allocator_);
  }
  static void expect_same(const Results& a, const Results& b) {
    EXPECT_EQ(a.metrics, b.metrics);
    EXPECT_EQ(a.peak, b.peak);
    EXPECT_TRUE(a.files == b.files);
    ASSERT_EQ(a.requests.size(), b.requests.size());
    for (std::size_t i = 0; i < a.requests.size(); ++i)
      ASSERT_TRUE(a.requests[i] == b.requests[i]) << "request " << i;
  }

 private:
  const bridge::NoAutograd no_autograd_{};
  fs::path root_ = fs::temp_directory_path() / ("neap-two-jobs-" + std::to_string(::getpid()));
  int folders_ = 0;
  std::optional<Settings> before_;
  c10::Allocator* allocator_ = nullptr;
};

// Settings of the process at requests of a job.
std::size_t deterministic_requests(const Results& results, int threads) {
  std::size_t count = 0;
  for (const Request& request : results.requests) {
    if (!request.settings) continue;
    EXPECT_EQ(request.settings->threads, threads);
    if (request.settings->deterministic) ++count;
  }
  return count;
}

TEST_F(TwoJobs, OneAfterTheOtherAndInTurnsComputeWhatTheyDoAlone) {
  const Results grpo = alone(float_grpo());
  expect_settings_of_the_process();
  const Results sft = alone(half_sft());
  expect_settings_of_the_process();
  EXPECT_EQ(deterministic_requests(grpo, 1), 0U);
  EXPECT_GT(deterministic_requests(sft, 2), 0U);
  expect_same(alone(float_grpo()), grpo);

  // Between any two phases of the one the other makes a step.
  std::optional<SteppedJob> first, second;
  std::size_t turns = 0;
  second.emplace(half_sft(), folder(), [] {});
  EXPECT_TRUE(second->streams());
  first.emplace(float_grpo(), folder(), [&] {
    if (second->done()) return;
    second->step();
    ++turns;
  });
  while (!first->done()) first->step();
  EXPECT_EQ(turns, 3U);
  ASSERT_TRUE(second->done());
  expect_settings_of_the_process();
  expect_same(first->results(), grpo);
  expect_same(second->results(), sft);
  second.reset();
  first.reset();
  expect_settings_of_the_process();
}

// What a job finds when it is made, and what the process does between phases.
void set_process(at::Context& torch, const char* float32, bool deterministic, bool attention) {
  torch.setFloat32MatmulPrecision(float32);
  torch.setDeterministicAlgorithms(deterministic, deterministic);  // as a warning
  torch.setSDPUseFlash(attention);
  torch.setSDPUseMath(attention);
}

TEST_F(TwoJobs, AJobKeepsTheSettingsThatItWasMadeWith) {
  at::Context& torch = at::globalContext();
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const Results sft = alone(half_sft());
  EXPECT_TRUE(at::equal(generator, at::detail::getDefaultCPUGenerator().get_state()));
  set_process(torch, "medium", true, true);
  const Results other = alone(float_grpo());

  std::optional<SteppedJob> first, second;
  set_process(torch, "highest", false, true);
  second.emplace(half_sft(), folder(), [] {});
  set_process(torch, "medium", true, true);
  first.emplace(float_grpo(), folder(), [&] {
    set_process(torch, "high", false, false);
    (void)at::rand({3});  // of the generator of the process
    if (!second->done()) second->step();
    EXPECT_EQ(torch.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGH);
    EXPECT_FALSE(torch.deterministicAlgorithms());
  });
  while (!first->done()) first->step();
  ASSERT_TRUE(second->done());
  expect_same(first->results(), other);
  expect_same(second->results(), sft);
  set_process(torch, "highest", false, true);
  expect_settings_of_the_process();
}

TEST_F(TwoJobs, WholeRunsOneAfterTheOtherGiveTheBitsOfTheirSteps) {
  const Files grpo = run_whole(float_grpo());
  expect_settings_of_the_process();
  const Files sft = run_whole(half_sft());
  expect_settings_of_the_process();
  EXPECT_FALSE(grpo.empty());
  EXPECT_TRUE(alone(float_grpo()).files == grpo);
  EXPECT_TRUE(alone(half_sft()).files == sft);
}

}  // namespace
}  // namespace neap::rlhf

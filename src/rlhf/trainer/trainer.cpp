#include "rlhf/trainer/trainer.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "base/status.h"
#include "bridge/runtime.h"

namespace neap::rlhf {

weights::SaveOptions Context::save_options() const {
  weights::SaveOptions options;
  options.companions = tokenizer_folder;
  options.max_shard = job.trainer.max_shard_size;
  return options;
}

at::Tensor Context::from_last_stage(spec::ModelId model, const at::Tensor& t) const {
  parallel::Communicator& stages = model_groups.of(model).along(spec::Axis::kPipe);
  if (stages.alone()) return t;
  const bridge::HostScope host;
  const int last = stages.size() - 1;
  const bool mine = stages.rank() == last;
  // The header of a tensor: whether it is defined, its type, its number of dimensions, and its
  // sizes.
  constexpr std::size_t kMostDimensions = 8;
  std::vector<std::int64_t> shape(3 + kMostDimensions);
  if (mine && t.defined()) {
    shape[0] = 1;
    shape[1] = static_cast<std::int64_t>(t.scalar_type());
    shape[2] = t.dim();
    std::copy(t.sizes().begin(), t.sizes().end(), shape.begin() + 3);
  }
  stages.broadcast(at::from_blob(shape.data(), {std::ssize(shape)}, at::dtype(at::kLong)), last);
  if (shape[0] == 0) return {};
  const at::IntArrayRef sizes(&shape[3], static_cast<std::size_t>(shape[2]));
  at::Tensor out = mine ? t.cpu().contiguous()
                        : at::empty(sizes, at::dtype(static_cast<at::ScalarType>(shape[1])));
  stages.broadcast(out, last);
  return out;
}

std::vector<std::size_t> Context::share_of(std::size_t rows) const {
  std::vector<std::size_t> all(rows);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return sharder().of(all);
}

train::WorkerSpec Context::worker_spec(spec::ModelId model) const {
  const spec::ModelSource& source = *recipe.find(model);
  train::WorkerSpec out{value_or_throw(spec::resolve(job, recipe, model, ranks.rank()))};
  out.seed = static_cast<std::uint64_t>(job.trainer.seed);
  out.init_head = source.init_head;
  out.storage = source.storage;
  out.folders = folders;
  if (!out.trained) return out;
  out.save_base = job.trainer.save_lora_base;
  out.adapter = job.resolve(source.trained->lora_adapter_path);
  out.zero_stage = job.data_parallel(model).zero_stage;
  if (!source.storage.shards_gradients) out.zero_stage = std::min<std::int64_t>(out.zero_stage, 1);
  return out;
}

std::unique_ptr<Trainer> make_trainer(Context& context) {
  switch (context.job.task) {
    case spec::Task::kSft:
      return make_sft_trainer(context);
    case spec::Task::kReward:
      return make_reward_trainer(context);
    case spec::Task::kDpo:
      return make_dpo_trainer(context);
    case spec::Task::kPpo:
    case spec::Task::kGrpo:
      return context.job.reads_experience() ? make_kept_trainer(context)
                                            : make_ppo_trainer(context);
    case spec::Task::kEval:
      break;
  }
  throw Error(ErrorCode::kInternal, "task out of range");
}

void run_in_step(parallel::Communicator& ranks, const std::function<void()>& work) {
  try {
    parallel::run_collectively(ranks, work);
  } catch (const parallel::CollectiveError& e) {
    if (e.status().code() == ErrorCode::kCancelled) throw StepInterrupted();
    throw StepFailure(e.status(), e.mine());
  } catch (const Error& e) {
    if (e.status().code() == ErrorCode::kCancelled) throw StepInterrupted();
    throw StepFailure(e.status(), true);
  }
}

void run_phase(Context& context, spec::PhaseId phase, const std::function<void()>& body) {
  const auto open = context.runtime.phase(phase);
  body();
  const parallel::Groups& groups = context.model_groups.of(context.recipe.find(phase)->model);
  for (parallel::Communicator* ranks : {&groups.shards(), &groups.replicas()}) {
    ranks->join();
    context.runtime.note_peers(ranks->take_lane_use());
  }
  throw_if_error(open->close());
}

Stopwatch::Stopwatch(Metrics& metrics, const char* name) : metrics_(metrics), name_(name) {}
Stopwatch::~Stopwatch() {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  metrics_[std::string("timing_s/") + name_] += seconds.count();
}

void summarize(Metrics& metrics, const std::string& prefix, const at::Tensor& x,
               const at::Tensor& mask) {
  const at::Tensor flat = mask.defined() ? x.masked_select(mask.gt(0)) : x.flatten();
  if (flat.numel() == 0) return;
  metrics[prefix + "/mean"] = flat.to(at::kDouble).mean().item<double>();
  metrics[prefix + "/max"] = flat.max().item<double>();
  metrics[prefix + "/min"] = flat.min().item<double>();
}

train::SequenceShape sequence_shape(const Context& context) {
  const spec::Job& job = context.job;
  return {job.max_sequence_length(), job.data.max_response_length, context.text.pad};
}

}  // namespace neap::rlhf

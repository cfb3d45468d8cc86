#include "plan/counting/counted_backend.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "cache/settings.h"
#include "plan/counting/counted_blocks.h"
#include "plan/counting/counted_model.h"
#include "plan/counting/counted_peers.h"
#include "plan/counting/counted_source.h"
#include "plan/counting/counted_training.h"
#include "plan/counting/generation_bounds.h"
#include "plan/counting/nccl_memory.h"
#include "spec/model/pipeline.h"
#include "step/pipeline/runner.h"

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::CountingOps;
using step::Dtype;
using Weights = step::Weights<CountedTensor>;

// Measures the time of each part of a stage's training phase.
class PassClock {
 public:
  void enter(const CountingOps& ops, double PassSeconds::*part) { enter(ops, seconds_.*part); }
  void enter(const CountingOps& ops, std::vector<double> PassSeconds::*part, std::int64_t chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    std::vector<double>& chunks = seconds_.*part;
    if (chunks.size() <= c) {
      leave(ops);
      chunks.resize(c + 1);
    }
    enter(ops, chunks[c]);
  }
  void leave(const CountingOps& ops) {
    const double now = ops.work().elapsed();
    if (part_ != nullptr) *part_ += now - since_;
    since_ = now;
    part_ = nullptr;
  }
  [[nodiscard]] const PassSeconds& seconds() const { return seconds_; }

 private:
  void enter(const CountingOps& ops, double& part) {
    leave(ops);
    part_ = &part;
  }
  PassSeconds seconds_;
  double* part_ = nullptr;
  double since_ = 0;
};

// The sizes of requests of a phase with the largest micro-batch.
class RequestSizes final : public step::MemorySink {
 public:
  [[nodiscard]] std::uint64_t allocate(std::int64_t bytes) override {
    if (bytes > kLargest) sizes_.insert(bytes);
    return 1;
  }
  void release(std::uint64_t) override {}

  // For each size: one with the maximum number of tokens that the head reads, and one where the
  // head's widest tensor has that size.
  [[nodiscard]] std::vector<step::PackedSize> smaller(const step::PackedSize& most,
                                                      std::int64_t tokens_of_ranks) const {
    std::set<std::int64_t> rows = {most.rows};
    for (const std::int64_t bytes : sizes_)
      for (const std::int64_t all : {most.rows, tokens_of_ranks})
        if (bytes % all == 0) rows.insert(kLargest / (bytes / all) * most.rows / all);
    std::int64_t read = most.read;
    for (const std::int64_t bytes : sizes_)
      if (bytes % most.read == 0) read = std::min(read, kLargest / (bytes / most.read));
    std::vector<step::PackedSize> out;
    for (const std::int64_t n : rows) {
      if (n == 0) continue;
      if (n < most.rows) out.push_back({n, n});
      if (read > 0 && read < std::min(n, most.read)) out.push_back({n, read});
    }
    return out;
  }

 private:
  static constexpr auto kLargest = static_cast<std::int64_t>(cache::kSmallSize.count());
  std::set<std::int64_t> sizes_;  // larger ones
};

// Runs one phase and drops its results.
class CountedBackend {
  using T = CountedTensor;

 public:
  using Ops = CountingOps;
  /// `trained` is the phase's model as this rank trains it.
  CountedBackend(CountingOps& ops, const spec::Job& job, const ModelRole& trained, ModelRole role,
                 Dtype dtype, const spec::Phase& phase, std::int64_t most_decode_steps,
                 std::vector<step::PackedSize> smaller)
      : ops_(ops),
        job_(job),
        role_(std::move(role)),
        dtype_(dtype),
        most_decode_steps_(most_decode_steps) {
    weights_ = counted_weights(role_, dtype);
    if (phase.body == spec::Body::kGenerate) {
      cache_ = counted_cache(role_, dtype, step::cache_shape(job));
      if (phase.gathers_weights) gather_model(trained, phase);
      return;
    }
    if (phase.body == spec::Body::kRolloutWeights) {
      prepare_rollout(trained, phase);
      return;
    }
    // The update computes its norms.
    const spec::ModelStorage& storage = phase.storage;
    if (storage.shards_weights &&
        (phase.part != spec::TrainPart::kUpdate || storage.streams_gradients())) {
      const bool overlaps = step::gathers_overlap_passes(
          role_.shape, ops.ranks(spec::Axis::kContext), uses_copy_lane(job, role_.id));
      slots_.emplace(ops, weights_, sharded_layers(role_, dtype, storage.layers, overlaps));
    }
    if (storage.streams_layers()) {
      CountedLayers layers = offloaded_layers(role_, dtype, storage);
      weights_.table_on_host = layers.tables.gives_rows();
      layers.each_once = phase.part == spec::TrainPart::kBackward;
      slots_.emplace(ops, weights_, std::move(layers));
    } else if (storage.streams_inputs() && (slots_ || phase.part != spec::TrainPart::kUpdate)) {
      input_slots_.emplace(ops, weights_, offloaded_inputs(role_, dtype));
    }
    if (slots_ || input_slots_)
      weights_.source = &blocks_.emplace(ops, weights_, slots_ ? &*slots_ : nullptr,
                                         input_slots_ ? &*input_slots_ : nullptr);
    if (phase.part != spec::TrainPart::kUpdate)
      experience_ =
          PhaseInputs<T, decltype(&T::outside)>(job, ops.profile(), &T::outside, std::move(smaller))
              .experience(role_.shape, phase, role_.context_rank);
    if (!phase.trains()) return;
    training_.emplace(ops, role_, dtype, phase, blocks_ ? &*blocks_ : nullptr);
    weights_.sink = training_->sink();
  }

  [[nodiscard]] CountingOps& ops() { return ops_; }
  [[nodiscard]] const spec::Job& job() const { return job_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const step::Experience<T>& experience() const { return experience_; }
  /// Called for an action of a stage's schedule.
  void begins(const step::PipelineAction& action) {
    using Kind = step::PipelineAction::Kind;
    if (!action.computes()) return;
    if (slots_ && action.kind != Kind::kForward) slots_->begin_pass_back(action.micro_batch);
    clock_.enter(ops_,
                 action.kind == Kind::kForward           ? &PassSeconds::forward
                 : action.kind == Kind::kBackwardWeights ? &PassSeconds::weights
                                                         : &PassSeconds::backward,
                 action.chunk);
  }
  [[nodiscard]] PassSeconds passes() {
    clock_.leave(ops_);
    return clock_.seconds();
  }
  void take_log_probs(const step::LogProbs<T>&) {}
  void take_scores(const T&) {}

  template <class Visit>
  void for_each_generation(const spec::Phase& phase, const Visit& visit) {
    const auto count = [&](const GenerationPass& pass) {
      CountedSource source(pass.actions, pass.sampling);
      ops_.weighted(pass.times,
                    [&] { std::visit([&](auto& cache) { visit(cache, source); }, cache_); });
    };
    for_each_generation_pass(job_, phase, ops_.profile().cuda, most_decode_steps_,
                             {count, [&](const auto& body) { ops_.aside(body); }});
  }

  [[nodiscard]] const spec::Checkpointing& checkpointing() const { return role_.checkpointing; }
  [[nodiscard]] const std::vector<step::TrainedUnit<T>>& units() const {
    return training_->units();
  }
  [[nodiscard]] const std::vector<step::TrainedUnit<T>>& pieces() const {
    return training_->pieces();
  }
  /// All mini-batches of a step. A separate update phase is counted once.
  [[nodiscard]] step::UpdateRange updates(const spec::Phase& phase) const {
    return {0, spec::update_shape(job_, phase.body).updates()};
  }
  [[nodiscard]] step::LossScale scale(std::int64_t) const { return {1, 1, 1}; }
  void take_numbers(const step::KeptNumbers<T>&) {}
  void read_numbers() {}
  [[nodiscard]] std::int64_t further_groups(std::int64_t) const { return 0; }
  void reduce_gradients() {
    if (staged()) clock_.enter(ops_, &PassSeconds::sums);
    training_->reduce_gradients();
  }
  // Numbers that ranks exchange pass through 512 KiB of device memory (parallel/nccl.cpp). The plan
  // covers them by its allowance for kernels' small buffers. Tensors of a collective stay in place.
  [[nodiscard]] std::vector<double> all_norms(std::vector<double> own) const { return own; }
  template <class Visit>
  void beside(const Visit& visit) {
    ops_.aside([&] { visit(training_->of_others()); });
  }
  [[nodiscard]] std::optional<step::Update> begin_step(std::int64_t, double) {
    if (staged()) clock_.enter(ops_, &PassSeconds::update);
    return step::Update{training_->optimizer(), role_.optimizer};
  }
  void gather_weights() { training_->gather_weights(); }
  template <class Visit>
  void for_each_part(const Visit& visit) {
    training_->for_each_part(visit);
  }

 private:
  [[nodiscard]] bool staged() const { return role_.shape.pipeline.stages > 1; }
  // Loads what is offloaded, for a generation. `staged`: from files.
  void fetch(double bytes, bool staged) {
    const double read =
        staged ? ops_.begin_disk(step::Direction::kToDevice, bytes, ops_.now()) : ops_.now();
    ops_.wait_until(ops_.begin_copy(step::Direction::kToDevice, bytes, read));
  }
  void prepare_rollout(const ModelRole& trained, const spec::Phase& phase) {
    if (phase.gathers_weights) gather_model(trained, phase);
    using step::Direction;
    if (!phase.stores_weights && !phase.loads_weights) return;
    double bytes = 0;
    for (const PartPlan& part : rollout_parts(trained, dtype_))
      bytes += static_cast<double>(round_up(part.bytes, step::kWindowPage).count());
    if (phase.loads_weights) return fetch(bytes, true);
    const double copied = ops_.begin_copy(Direction::kToHost, bytes, ops_.now());
    ops_.wait_until(ops_.begin_disk(Direction::kToHost, bytes, copied));
  }
  // Loads offloaded blocks or shards, then gathers units from ZeRO shards or stages, then exchanges
  // tensor-parallel shards. Local copies are ignored: they are much faster than gathers.
  void gather_model(const ModelRole& trained, const spec::Phase& phase) {
    const std::int64_t stages = trained.shape.pipeline.stages;
    const bool slices = role_.ranks.slices_weights();
    double rests = 0;
    if (phase.storage.streams_shard())
      for (const Bytes unit : slice_bytes(trained, dtype_))
        rests += static_cast<double>(unit.count());
    if (phase.storage.streams_layers())
      for (const PartPlan& block : fetched_blocks(trained, dtype_, phase.storage.layers))
        rests += static_cast<double>(block.bytes.count());
    if (rests > 0) {
      const double begin = ops_.now();
      fetch(rests, spec::is_staged(phase.storage.layers));
      // Units are gathered one after another; the other stages' units take as long.
      const double others = static_cast<double>(stages - 1) * (ops_.now() - begin);
      if (trained.divides_otherwise_to_generate())
        ops_.wait_for_peers(ops_.now() + others, 0, spec::Axis::kPipe);
    }
    if (!trained.generation_part && !slices) return;
    const auto sends = [this](double sent, spec::Axis axis) {
      ops_.wait_for_peers(ops_.now() + ops_.peer_seconds(sent, 1, axis), sent);
    };
    const auto elements_of = [this](const spec::Architecture& shape) {
      return spec::total_elements(spec::flat_layout(shape, role_.head));
    };
    const double gathered = bytes_of(elements_of(spec::undivided(trained.shape)), dtype_);
    // The units of this stage.
    if (slices)
      gather_at_once(ops_, role_.ranks,
                     stages == 1 ? gathered : bytes_of(elements_of(trained.shape), dtype_));
    // Each stage broadcasts its units, which sends as much per rank as a gather.
    if (stages > 1) sends(step::gathered_bytes(stages, gathered), spec::Axis::kPipe);
    if (trained.shape.tensor.ranks > 1 && trained.divides_otherwise_to_generate())
      sends(bytes_of(transfers_to_generate(trained).busiest, dtype_), spec::Axis::kTensor);
  }

  CountingOps& ops_;
  PassClock clock_;
  const spec::Job& job_;
  ModelRole role_;
  Dtype dtype_;
  std::int64_t most_decode_steps_;
  Weights weights_;
  step::AnyCache<T> cache_;
  std::optional<CountedSlots> input_slots_, slots_;
  std::optional<CountedBlocks> blocks_;
  step::Experience<T> experience_;
  std::optional<CountedTraining> training_;
};

}  // namespace

std::vector<step::PackedSize> smaller_sizes(const step::KernelProfile& profile,
                                            const spec::Job& job, const JobModels& models,
                                            Dtype dtype, const spec::Phase& phase) {
  const spec::Batching batching = spec::batching_of(job, phase);
  if (batching.tokens == 0 || phase.part == spec::TrainPart::kUpdate) return {};
  RequestSizes sizes;
  CountingOps ops(sizes, profile, 1);
  CountedBackend backend(ops, job, models.at(phase.model), role_of(models, phase), dtype, phase, 1,
                         {});
  const step::Packed<CountedTensor>& packed = *backend.experience().sequences.packed;
  const std::int64_t sequences = packed.cuts.front().front().count * batching.sequences_of_row;
  const auto last = static_cast<std::size_t>(sequences);
  const step::PackedSize most{packed.starts[last], packed.counts[last]};
  std::int64_t tokens = 0;  // of all context-parallel ranks
  for (std::size_t i = 0; i < last; ++i) tokens += packed.lengths[i];
  step::run_phase(backend, phase);
  return sizes.smaller(most, tokens);
}

PassSeconds count_phase(CountingOps& ops, const spec::Job& job, const JobModels& models,
                        Dtype dtype, const spec::Phase& phase, std::int64_t most_decode_steps) {
  std::vector<step::PackedSize> smaller;
  if (ops.counts_aside()) smaller = smaller_sizes(ops.profile(), job, models, dtype, phase);
  CountedBackend backend(ops, job, models.at(phase.model), role_of(models, phase), dtype, phase,
                         most_decode_steps, std::move(smaller));
  step::run_phase(backend, phase);
  return backend.passes();
}

}  // namespace neap::plan

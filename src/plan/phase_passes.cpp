#include "plan/phase_passes.h"

#include <algorithm>

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::CountingOps;
using step::Dtype;
using Weights = step::Weights<CountedTensor>;

/// `gradients`: their type; none where the units are frozen.
void bind_units(Weights& w, const std::vector<spec::FlatUnit>& units, Dtype dtype,
                std::optional<Dtype> gradients) {
  for (const spec::FlatUnit& unit : units) {
    for (const spec::Parameter& p : unit.parameters) {
      const step::Shape shape =
          p.shape.size() == 2 ? step::Shape{p.shape[0], p.shape[1]} : step::Shape{p.shape.at(0)};
      step::bind_parameter(w, unit, p, CountedTensor::outside(shape, dtype),
                           gradients ? CountedTensor::outside(shape, *gradients) : CountedTensor());
    }
  }
}

class CountedWorld {
 public:
  using Ops = CountingOps;
  CountedWorld(CountingOps& ops, Dtype dtype) : ops_(ops), dtype_(dtype) {}

  [[nodiscard]] CountingOps& ops() { return ops_; }
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] Weights weights(const ModelRole& role) { return counted_weights(role, dtype_); }
  [[nodiscard]] std::vector<step::TrainedUnit<CountedTensor>> units(const ModelRole& role) {
    std::vector<step::TrainedUnit<CountedTensor>> out;
    const spec::OptimizerSpec optimizer = optimizer_of(role, dtype_);
    for (spec::FlatUnit& unit : trained_units(role)) {
      const auto flat = [](std::int64_t n, Dtype d) { return CountedTensor::outside({n}, d); };
      const std::int64_t n = unit.elements;
      out.push_back(step::make_trained_unit(
          optimizer, std::move(unit), std::ssize(out), flat(n, dtype_),
          flat(n, optimizer.gradients),
          [&](const spec::StateTensor& t) { return flat(t.elements, t.dtype); }));
    }
    return out;
  }
  [[nodiscard]] step::KvCache<CountedTensor> cache(const ModelRole& role, std::int64_t batch,
                                                   std::int64_t tokens) {
    const step::Shape shape{batch, role.shape.num_key_value_heads, tokens, role.shape.head_dim};
    step::KvCache<CountedTensor> out;
    out.keys.assign(static_cast<std::size_t>(role.shape.num_hidden_layers),
                    CountedTensor::outside(shape, dtype_));
    out.values = out.keys;
    return out;
  }
  template <class Body>
  void weighted(double times, const Body& body) {
    ops_.weighted(times, body);
  }
  [[nodiscard]] CountedTensor host(const step::Shape& shape, Dtype dtype, std::int64_t) {
    return CountedTensor::outside(shape, dtype);
  }

 private:
  CountingOps& ops_;
  Dtype dtype_;
};

}  // namespace

std::vector<spec::FlatUnit> trained_units(const ModelRole& role) {
  return role.lora.rank > 0 ? spec::lora_layout(role.shape, role.head, role.lora)
                            : spec::flat_layout(role.shape, role.head);
}

std::int64_t micro_batch_of(const spec::Job& job, const spec::Phase& phase) {
  switch (phase.body) {
    case spec::Body::kGenerate:
      return phase.baseline ? std::min(job.rollout_batch(), job.rows_per_rank())
                            : job.rollout_batch();
    case spec::Body::kLogProbs:
      return phase.id == spec::PhaseId::kReferenceLogProbs
                 ? job.reference_micro_batch()
                 : job.rollout.log_prob_micro_batch_size_per_gpu;
    case spec::Body::kTokenScores:
      return job.values_micro_batch();
    case spec::Body::kSequenceScores:
      return job.reward_micro_batch();
    case spec::Body::kPolicyUpdate:
    case spec::Body::kValueUpdate:
    case spec::Body::kCrossEntropyUpdate:
    case spec::Body::kPairUpdate:
    case spec::Body::kPreferenceUpdate:
      return spec::update_shape(job, phase.body).micro_batch;
    case spec::Body::kCrossEntropy:
    case spec::Body::kPairScores:
      break;
  }
  return job.data.micro_batch_size_per_gpu;
}

std::int64_t training_sequences(const spec::Job& job, const spec::Phase& phase) {
  return micro_batch_of(job, phase) * (job.has_pairs() ? 2 : 1);
}

Weights counted_weights(const ModelRole& role, Dtype dtype) {
  Weights w;
  w.architecture = role.shape;
  w.head = role.head;
  w.blocks.resize(static_cast<std::size_t>(role.shape.num_hidden_layers));
  const bool adapted = role.lora.rank > 0;
  std::optional<Dtype> gradients;
  if (role.trained) gradients = optimizer_of(role, dtype).gradients;
  bind_units(w, spec::flat_layout(role.shape, role.head), dtype,
             adapted ? std::nullopt : gradients);
  step::finish_binding(w);
  if (adapted) bind_units(w, spec::lora_layout(role.shape, role.head, role.lora), dtype, gradients);
  return w;
}

void count_phase(CountingOps& ops, const spec::Job& job, const JobModels& models, Dtype dtype,
                 const spec::Phase& phase, std::int64_t most_decode_steps) {
  CountedWorld world(ops, dtype);
  PhasePasses<CountedWorld>(world, job).run(models, phase, most_decode_steps);
}

}  // namespace neap::plan

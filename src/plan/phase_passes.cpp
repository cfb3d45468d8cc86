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
  [[nodiscard]] const step::KernelProfile& profile() const { return ops_.profile(); }
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
  [[nodiscard]] step::SlotCache<CountedTensor> cache(const ModelRole& role, std::int64_t batch,
                                                     std::int64_t tokens) {
    const step::Shape shape{batch, role.shape.num_key_value_heads, tokens, role.shape.head_dim};
    step::SlotCache<CountedTensor> out;
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

std::int64_t further_sequences(const step::KernelProfile& profile, const spec::Architecture& shape,
                               const step::PackingLimits& packing,
                               const step::SequenceLimits& limits) {
  if (!profile.cuda || !profile.deterministic) return 0;
  const step::AttentionSizes sizes{.sequences = packing.sequences,
                                   .heads = shape.num_attention_heads,
                                   .key_heads = shape.num_key_value_heads,
                                   .width = shape.head_dim,
                                   .packed_rows = packing.tokens};
  const std::int64_t worst = step::sequences_of_most_scratch(sizes, limits.longest, profile.device);
  return step::div_up(worst, limits.of_row) * limits.of_row;
}

step::Spans<CountedTensor> micro_batch_spans(const spec::Job& job, const spec::Phase& phase) {
  const spec::Batching batching = spec::batching_of(job, phase);
  const std::int64_t length = job.max_sequence_length();
  if (batching.tokens == 0) return {batching.rows * batching.sequences_of_row, length};
  const step::PackedLayout layout =
      step::extreme_layout(batching.most_rows, batching.tokens,
                           {length, job.data.max_response_length, batching.sequences_of_row});
  const std::int64_t sequences = layout.micro_batches.front().count * batching.sequences_of_row;
  step::Spans<CountedTensor> spans{sequences, length};
  for (std::size_t i = 0; std::ssize(spans.lengths) < sequences; ++i)
    spans.lengths.push_back(layout.starts[i + 1] - layout.starts[i]);
  return spans;
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

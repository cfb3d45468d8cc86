#include "plan/search/checkpoint_ladder.h"

#include <algorithm>
#include <utility>

#include "plan/counting/counted_model.h"
#include "step/training/training.h"

namespace neap::plan {
namespace {

using spec::BlockRetention;
using spec::Retention;
using spec::SavedTensor;
using step::CountedTensor;
using step::CountingOps;

// Bytes of live tensors.
class LiveBytes final : public step::MemorySink {
 public:
  [[nodiscard]] std::uint64_t allocate(std::int64_t bytes) override {
    live_ += bytes;
    sizes_.push_back(bytes);
    return sizes_.size();
  }
  void release(std::uint64_t address) override { live_ -= sizes_[address - 1]; }
  [[nodiscard]] std::int64_t live() const { return live_; }

 private:
  std::int64_t live_ = 0;
  std::vector<std::int64_t> sizes_;
};

struct BlockCost {
  double seconds = 0;     ///< of forward and backward
  std::int64_t kept = 0;  ///< bytes between them
};

// One block of the model with one micro-batch.
class Probe {
 public:
  Probe(const ModelRole& role, spec::Dtype dtype, const step::KernelProfile& profile,
        step::Spans<CountedTensor> spans)
      : dtype_(dtype), profile_(profile), spans_(std::move(spans)) {
    ModelRole one = role;
    one.shape.num_hidden_layers = 1;
    one.shape.pipeline = {};
    weights_ = counted_weights(one, dtype);
  }

  [[nodiscard]] BlockCost cost(const BlockRetention& retention) const {
    LiveBytes sink;
    CountingOps ops(sink, profile_, 1);
    const step::Shape hidden{weights_.architecture.tensor.rows_of(spans_.rows()),
                             weights_.architecture.hidden_size};
    const auto tokens = CountedTensor::outside({spans_.rows()}, spec::Dtype::kInt64);
    BlockCost cost;
    step::train_one_block(
        ops, weights_, {tokens, spans_, tokens}, CountedTensor::outside(hidden, dtype_),
        CountedTensor::outside(hidden, dtype_), retention, [&] { cost.kept = sink.live(); });
    cost.seconds = ops.work().seconds + ops.work().peer_seconds;
    return cost;
  }

 private:
  spec::Dtype dtype_;
  step::KernelProfile profile_;
  step::Spans<CountedTensor> spans_;
  step::Weights<CountedTensor> weights_;
};

BlockRetention dropping(const std::vector<SavedTensor>& tensors) {
  BlockRetention r;
  for (const SavedTensor t : tensors) r.set(t, Retention::kRecompute);
  return r;
}

}  // namespace

CheckpointLadder::CheckpointLadder(const ModelRole& role, spec::Dtype dtype,
                                   const step::KernelProfile& profile,
                                   const step::Spans<CountedTensor>& spans)
    : layers_(static_cast<std::size_t>(role.shape.blocks())) {
  const Probe probe(role, dtype, profile, spans);
  const BlockCost all = probe.cost({});
  struct Priced {
    Item item;
    double seconds_per_byte;
  };
  std::vector<Priced> priced;
  const auto price = [&](Item item) {
    const BlockCost without = probe.cost(dropping(item));
    const std::int64_t bytes = all.kept - without.kept;
    if (bytes <= 0) return false;
    priced.push_back({std::move(item),
                      std::max(0.0, without.seconds - all.seconds) / static_cast<double>(bytes)});
    return true;
  };
  // Tensors that share memory, such as parts of one product, are freed only together.
  Item rest;
  for (std::size_t t = 0; t < spec::kSavedTensors; ++t) {
    const auto tensor = static_cast<SavedTensor>(t);
    if (price({tensor})) continue;
    if (!rest.empty() && price({rest.back(), tensor})) {
      rest.pop_back();
      continue;
    }
    rest.push_back(tensor);
  }
  std::stable_sort(priced.begin(), priced.end(), [](const Priced& a, const Priced& b) {
    return a.seconds_per_byte < b.seconds_per_byte;
  });
  for (Priced& p : priced) items_.push_back(std::move(p.item));
  // Tensors that free nothing are dropped with the last item, so that the last rung keeps only
  // inputs.
  if (items_.empty()) items_.emplace_back();
  items_.back().insert(items_.back().end(), rest.begin(), rest.end());
}

spec::Checkpointing CheckpointLadder::at(std::size_t rung) const {
  spec::Checkpointing out{std::vector<BlockRetention>(layers_)};
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const std::size_t blocks = std::min(layers_, rung - std::min(rung, i * layers_));
    for (std::size_t b = 0; b < blocks; ++b)
      for (const SavedTensor t : items_[i]) out.blocks[b].set(t, Retention::kRecompute);
  }
  return out;
}

}  // namespace neap::plan

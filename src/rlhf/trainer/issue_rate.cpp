#include "rlhf/trainer/issue_rate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "bridge/no_autograd.h"
#include "ops/transformer.h"
#include "plan/counting/counted_model.h"
#include "spec/model/layout.h"
#include "step/counting/counting_ops.h"
#include "step/generation/generation.h"

namespace neap::rlhf {
namespace {

constexpr std::int64_t kTokens = 64;

spec::Architecture small_model() {
  spec::Architecture a;
  a.vocab_size = 256;
  a.hidden_size = a.embedding_dim = 64;
  a.intermediate_size = 128;
  a.num_hidden_layers = 16;
  a.num_attention_heads = 4;
  a.num_key_value_heads = 2;
  a.head_dim = a.rotary.dimensions = 16;
  a.max_position_embeddings = kTokens;
  return a;
}

class NoSink final : public step::MemorySink {
 public:
  [[nodiscard]] std::uint64_t allocate(std::int64_t) override { return 1; }
  void release(std::uint64_t) override {}
};

// Decodes one token of one sequence, on real or counting tensors.
template <class Ops, class T = typename Ops::Tensor>
void decode(Ops& ops, const step::Weights<T>& weights, const step::SlotCache<T>& cache,
            const T& integers, const T& uniforms) {
  step::DecodeRows<T> rows =
      step::on_device(ops, step::DecodeRows<T>{integers, integers, integers});
  const step::Rotations<T> rotations = step::make_rotations(ops, weights.architecture, kTokens);
  (void)step::decode_and_sample(ops, weights, rotations, rows, {uniforms, {}, {}}, cache,
                                step::DecodeStep{1, kTokens}, {});
}

// The number of operations in a step, as plans count them.
double counted(const spec::Architecture& shape) {
  using step::CountedTensor;
  using step::Dtype;
  NoSink sink;
  step::KernelProfile profile;
  profile.cuda = true;
  // Counts one second per launched operation and zero for computation. The seconds of a token
  // combine both.
  constexpr double kAtOnce = 1e30;
  profile.rates = {
      .half_flops = kAtOnce, .single_flops = kAtOnce, .bytes = kAtOnce, .issue_seconds = 1};
  step::CountingOps ops(sink, profile, shape.num_hidden_layers);
  plan::ModelRole role;
  role.shape = shape;
  const step::Weights<CountedTensor> weights = plan::counted_weights(role, Dtype::kBfloat16);
  step::SlotCache<CountedTensor> cache;
  cache.keys.assign(static_cast<std::size_t>(shape.num_hidden_layers),
                    CountedTensor::outside({1, shape.num_key_value_heads, kTokens, shape.head_dim},
                                           Dtype::kBfloat16));
  cache.values = cache.keys;
  decode(ops, weights, cache, CountedTensor::outside({1}, Dtype::kInt64),
         CountedTensor::outside({1}, Dtype::kFloat32));
  return ops.work().issue_seconds;
}

}  // namespace

double measure_issue_seconds(at::Device device) {
  const bridge::NoAutograd no_autograd;
  const spec::Architecture shape = small_model();
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device);
  ops::FlatTensors flat;
  for (const spec::FlatUnit& unit : spec::flat_layout(shape, spec::Head::kLanguageModel))
    flat.weights.push_back(at::zeros({unit.elements}, options));
  ops::Transformer network(shape, spec::Head::kLanguageModel, std::move(flat));
  const ops::KvCache cache = ops::KvCache::over(
      at::zeros({ops::KvCache::elements(shape, 1, kTokens)}, options), shape, 1, kTokens);
  const at::Tensor integers = at::zeros({1}, at::kLong);
  const at::Tensor uniforms = at::zeros({1});
  constexpr int kSteps = 20;
  std::array<double, 5> seconds{};
  for (std::size_t round = 0; round <= seconds.size(); ++round) {
    const auto start = std::chrono::steady_clock::now();
    // Each step waits for its token, so launches are not queued ahead.
    for (int i = 0; i < kSteps; ++i)
      decode(network.ops(), network.weights(), cache, integers, uniforms);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (round > 0) seconds[round - 1] = took.count() / kSteps;  // the first round warms up
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2] / counted(shape);
}

}  // namespace neap::rlhf

// A plan runs a few blocks for all of them, but not where layers differ.
#include <gtest/gtest.h>

#include <algorithm>

#include "spec/model/layout.h"
#include "step/counting/counting_ops.h"
#include "step/model/transformer.h"
#include "step/operations/bind.h"
#include "step/operations/linear.h"

namespace neap::step {
namespace {

class Peak final : public MemorySink {
 public:
  std::uint64_t allocate(std::int64_t bytes) override {
    held_ += bytes;
    peak = std::max(peak, held_);
    return static_cast<std::uint64_t>(bytes);
  }
  void release(std::uint64_t address) override { held_ -= static_cast<std::int64_t>(address); }
  std::int64_t peak = 0;

 private:
  std::int64_t held_ = 0;
};

Weights<CountedTensor> weights_of(const spec::Architecture& a) {
  Weights<CountedTensor> w;
  w.architecture = a;
  w.blocks.resize(static_cast<std::size_t>(a.num_hidden_layers));
  for (const spec::FlatUnit& unit : spec::flat_layout(a, spec::Head::kLanguageModel)) {
    for (const spec::Parameter& p : unit.parameters) {
      const Shape shape = p.shape.size() == 2 ? Shape{p.shape[0], p.shape[1]} : Shape{p.shape[0]};
      bind_parameter(w, unit, p, CountedTensor::outside(shape, Dtype::kFloat32), CountedTensor());
    }
  }
  finish_binding(w);
  return w;
}

std::int64_t peak_of(const spec::Architecture& a, std::int64_t most_repeats) {
  Peak memory;
  CountingOps ops(memory, {}, most_repeats);
  const CountedTensor tokens = CountedTensor::outside({128}, Dtype::kInt64);
  (void)forward(ops, weights_of(a), of_one_length(tokens, 64));
  return memory.peak;
}

// On a CPU a gradient of another type than the product's is added through a copy of its type.
TEST(Linear, ConversionsOfProductsAreCounted) {
  Peak memory;
  CountingOps ops(memory, {}, 1);
  const auto matrix = [](std::int64_t rows, std::int64_t columns, Dtype dtype) {
    return CountedTensor::outside({rows, columns}, dtype);
  };
  for (const double scale : {1.0, 0.5}) {
    memory.peak = 0;
    add_outer(ops, matrix(64, 32, Dtype::kFloat32), matrix(128, 64, Dtype::kBfloat16),
              matrix(128, 32, Dtype::kBfloat16), scale);
    EXPECT_EQ(memory.peak, std::int64_t{64} * 32 * (2 + 4));
  }
}

TEST(Layers, OneThatSlidesAloneIsCounted) {
  spec::Architecture a;
  a.vocab_size = 100;
  a.hidden_size = a.embedding_dim = 32;
  a.intermediate_size = 48;
  a.num_hidden_layers = 6;
  a.num_attention_heads = a.num_key_value_heads = 4;
  a.head_dim = 8;
  a.max_position_embeddings = 64;
  a.rotary.dimensions = 8;
  const std::int64_t fused = peak_of(a, 2);
  EXPECT_EQ(fused, peak_of(a, 1000));
  a.sliding_window = 32;
  a.sliding_layers = {false, false, false, false, false, true};
  EXPECT_GT(peak_of(a, 1000), fused);
  EXPECT_EQ(peak_of(a, 2), peak_of(a, 1000));
}

}  // namespace
}  // namespace neap::step

// A small model with random weights and prompts of 1 to 4 tokens.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "ops/transformer.h"
#include "rollout/generator.h"
#include "spec/model/layout.h"
#include "weights/initialize.h"

namespace neap::rollout {

class Generator : public ::testing::Test {
 protected:
  Generator() : model_(make()) {
    for (int i = 0; i < 7; ++i) {
      std::vector<std::int64_t> tokens;
      for (int k = 0; k <= i % 4; ++k) tokens.push_back(1 + (i * 7 + k * 3) % 49);
      prompts_.push_back({tokens, random_key({9, static_cast<std::uint64_t>(i)})});
    }
  }
  /// Of the features of `shape_`, whose sizes it sets.
  ops::Transformer make() {
    shape_.vocab_size = 50;
    shape_.hidden_size = shape_.embedding_dim = 32;
    shape_.intermediate_size = 48;
    shape_.num_hidden_layers = 2;
    shape_.num_attention_heads = 4;
    shape_.num_key_value_heads = 2;
    shape_.head_dim = shape_.rotary.dimensions = 8;
    shape_.max_position_embeddings = 64;
    ops::FlatTensors flat;
    for (const auto& unit : spec::flat_layout(shape_, spec::Head::kLanguageModel)) {
      flat.weights.push_back(at::zeros({unit.elements}, at::kDouble));
    }
    weights::initialize(shape_, spec::Head::kLanguageModel, 0, flat.weights, 3,
                        0.3);  // far from uniform
    return {shape_, spec::Head::kLanguageModel, std::move(flat)};
  }
  std::vector<Response> run(const std::vector<Prompt>& prompts, std::int64_t slots) {
    const std::int64_t width = 16;
    // What a recycled page may hold.
    const at::Tensor flat =
        at::full({ops::KvCache::elements(shape_, slots, width)}, std::nan(""), at::kDouble);
    cache_ = ops::KvCache::over(flat, shape_, slots, width);
    return generate(model_, cache_, prompts, options_);
  }
  void expect_as_alone(const std::vector<Prompt>& prompts, const std::vector<Response>& responses) {
    ASSERT_EQ(prompts.size(), responses.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const Response& alone = alone_of(prompts[i]);
      EXPECT_EQ(responses[i].tokens, alone.tokens) << i;
      EXPECT_EQ(responses[i].ended, alone.ended) << i;
    }
  }
  // Generated once under each list of end tokens.
  const Response& alone_of(const Prompt& prompt) {
    const auto key = std::make_tuple(prompt.tokens, prompt.key, options_.eos_token_ids);
    const auto found = alone_.find(key);
    return found != alone_.end() ? found->second
                                 : alone_.emplace(key, run({prompt}, 1).front()).first->second;
  }
  spec::Architecture shape_;
  std::vector<Prompt> prompts_;
  ops::KvCache cache_;
  GenerateOptions options_{
      .prompt_width = 5, .max_new_tokens = 11, .eos_token_ids = {0}, .prefill = {1 << 20, 5}};
  ops::Transformer model_;
  std::map<std::tuple<std::vector<std::int64_t>, std::uint64_t, std::vector<std::int64_t>>,
           Response>
      alone_;
};

}  // namespace neap::rollout

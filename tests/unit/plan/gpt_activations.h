// GPT-2's architecture at any size, and what training it keeps on a GPU: what published formulas are
// about.
#pragma once

#include <cstdint>

#include "plan/counting/counted_memory.h"
#include "plan/counting/counted_model.h"
#include "step/model/transformer.h"

namespace neap::plan {

/// Of 2 048 positions and GPT-2's vocabulary.
inline spec::Architecture gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  return *spec::Architecture::from_json({{"model_type", "gpt2"},
                                         {"n_layer", layers},
                                         {"n_embd", hidden},
                                         {"n_head", heads},
                                         {"n_positions", 2048}},
                                        "config.json");
}

/// Bytes that a training forward over b sequences of s tokens leaves, in bfloat16.
inline std::uint64_t kept_bytes(const spec::Architecture& shape, spec::CheckpointMode mode,
                                std::int64_t b, std::int64_t s) {
  ModelRole role;
  role.shape = shape;
  role.trained = true;
  CountedMemory memory{cache::Settings{}};
  step::KernelProfile profile{true, 2};
  profile.tensor_ranks = shape.tensor.ranks;
  step::CountingOps ops(memory, profile, 2);
  const auto w = counted_weights(role, spec::Dtype::kBfloat16);
  const auto tokens = step::CountedTensor::outside({b * s}, spec::Dtype::kInt64);
  const auto tape =
      step::forward_train(ops, w, step::of_one_length(tokens, s), spec::checkpointing(mode, shape));
  return memory.allocated().count();
}

/// Bytes that one more block keeps.
inline double kept_a_block(spec::Architecture shape, spec::CheckpointMode mode, std::int64_t b,
                           std::int64_t s) {
  const auto kept = [&](std::int64_t layers) {
    shape.num_hidden_layers = layers;
    return static_cast<double>(kept_bytes(shape, mode, b, s));
  };
  return kept(2) - kept(1);
}

}  // namespace neap::plan

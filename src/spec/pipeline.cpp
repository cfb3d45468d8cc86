#include "spec/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "spec/layout.h"

namespace neap::spec {
namespace {

// Of an undivided model, whose blocks are alike: a block's, and what the first and the last stage have besides.
struct StageSizes {
  std::int64_t block = 0, first = 0, last = 0;
  [[nodiscard]] std::int64_t of(std::int64_t stage, std::int64_t stages,
                                std::int64_t blocks) const {
    return blocks * block + (stage == 0 ? first : 0) + (stage + 1 == stages ? last : 0);
  }
};

// Elements of the matrices that a token is multiplied by. Rows of a table that are looked up cost nothing.
StageSizes work_of(const Architecture& whole, Head head) {
  StageSizes out;
  for (const Linear& linear : block_linears(whole)) out.block += linear.in * linear.out;
  const bool words = head == Head::kLanguageModel;
  out.last = words ? whole.embedding_dim * whole.vocab_size : whole.hidden_size;
  if (!whole.projects_embedding()) return out;
  out.first = whole.embedding_dim * whole.hidden_size;
  if (words) out.last += out.first;
  return out;
}

// Parameters, which weights, gradients and optimizer states follow.
StageSizes parameters_of(const Architecture& whole, Head head) {
  StageSizes out;
  for (const FlatUnit& unit : flat_layout(whole, head)) {
    if (unit.block >= 0) {
      out.block = unit.elements;
    } else if (unit.find(Module::kTokenEmbedding) != nullptr) {
      out.first += unit.elements;
    } else {
      out.last += unit.elements;
    }
  }
  if (whole.ties_table(head)) out.last += out.first;
  return out;
}

// The most blocks of each stage whose work is `most` at most; empty: a stage has none.
std::vector<std::int64_t> most_blocks(const StageSizes& work, std::int64_t stages,
                                      std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const std::int64_t left = most - work.of(stage, stages, 0);
    if (left < work.block) return {};
    out.push_back(left / work.block);
  }
  return out;
}

// Those of the division whose largest stage has the least work.
std::vector<std::int64_t> most_blocks(const StageSizes& work, std::int64_t stages,
                                      std::int64_t blocks, std::int64_t low, std::int64_t high) {
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const std::vector<std::int64_t> most = most_blocks(work, stages, middle);
    if (std::accumulate(most.begin(), most.end(), std::int64_t{0}) < blocks) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return most_blocks(work, stages, high);
}

}  // namespace

std::vector<std::int64_t> divide_blocks(const Architecture& whole, Head head, std::int64_t stages) {
  if (!whole.pipeline.layout.empty()) return whole.pipeline.layout;
  const StageSizes work = work_of(whole, head), parameters = parameters_of(whole, head);
  const std::int64_t blocks = whole.num_hidden_layers;
  const std::vector<std::int64_t> most =
      most_blocks(work, stages, blocks, 0, work.first + work.last + blocks * work.block);
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), 1);
  // Each further block goes where there is least with it.
  for (std::int64_t left = blocks - stages; left > 0; --left) {
    std::int64_t chosen = -1, least = 0;
    for (std::int64_t stage = stages; stage-- > 0;) {
      const auto s = static_cast<std::size_t>(stage);
      const std::int64_t with = parameters.of(stage, stages, out[s] + 1);
      if (out[s] == most[s] || (chosen >= 0 && with >= least)) continue;
      chosen = stage;
      least = with;
    }
    ++out[static_cast<std::size_t>(chosen)];
  }
  return out;
}

Result<Architecture> stage_of(const Architecture& whole, Head head, std::int64_t stages,
                              std::int64_t stage, std::string_view name) {
  if (stages == 1) return whole;
  if (stages > whole.num_hidden_layers) {
    return Status(
        ErrorCode::kInvalidArgument,
        format("parallel.pipeline_model_parallel_size {} is more than the {} blocks of the "
               "{} model; every stage has one at least",
               stages, whole.num_hidden_layers, name));
  }
  const std::vector<std::int64_t> blocks = divide_blocks(whole, head, stages);
  if (const std::int64_t sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
      std::ssize(blocks) != stages || sum != whole.num_hidden_layers) {
    return Status(ErrorCode::kInvalidArgument,
                  format("parallel.pipeline_model_parallel_layout has {} stages with {} blocks; "
                         "the {} model has {} blocks for {} stages",
                         blocks.size(), sum, name, whole.num_hidden_layers, stages));
  }
  Architecture out = whole;
  out.pipeline.stages = stages;
  out.pipeline.stage = stage;
  out.pipeline.first = 0;
  out.pipeline.blocks = blocks[static_cast<std::size_t>(stage)];
  for (std::int64_t s = 0; s < stage; ++s)
    out.pipeline.first += blocks[static_cast<std::size_t>(s)];
  return out;
}

std::int64_t stage_of_unit(const Architecture& whole, Head head, std::int64_t stages,
                           const FlatUnit& unit) {
  if (unit.block < 0) return unit.find(Module::kTokenEmbedding) != nullptr ? 0 : stages - 1;
  const std::vector<std::int64_t> blocks = divide_blocks(whole, head, stages);
  std::int64_t stage = 0;
  for (std::int64_t end = blocks[0]; unit.block >= end;)
    end += blocks[static_cast<std::size_t>(++stage)];
  return stage;
}

Architecture undivided(Architecture stage) {
  PipelineStage whole;
  whole.layout = std::move(stage.pipeline.layout);
  stage.pipeline = std::move(whole);
  return stage;
}

}  // namespace neap::spec

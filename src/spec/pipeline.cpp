#include "spec/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "spec/layout.h"

namespace neap::spec {
namespace {

// Parameters of an undivided model.
struct Sizes {
  std::int64_t first = 0, last = 0;  // outside the blocks
  std::vector<std::int64_t> blocks;
};

Sizes sizes_of(const Architecture& whole, Head head) {
  Sizes out;
  for (const FlatUnit& unit : flat_layout(whole, head)) {
    if (unit.block >= 0) {
      out.blocks.push_back(unit.elements);
    } else if (unit.find(Module::kTokenEmbedding) != nullptr) {
      out.first += unit.elements;
    } else {
      out.last += unit.elements;
    }
  }
  if (head == Head::kLanguageModel && whole.tie_word_embeddings) out.last += out.first;
  return out;
}

// From the last stage on, each takes blocks as long as it has `most` parameters at most and leaves one for
// every stage before it. Empty: the first one has more.
std::vector<std::int64_t> fill(const Sizes& sizes, std::int64_t stages, std::int64_t most) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages));
  auto left = std::ssize(sizes.blocks);
  for (std::int64_t stage = stages; stage-- > 0;) {
    std::int64_t sum = (stage == 0 ? sizes.first : 0) + (stage + 1 == stages ? sizes.last : 0);
    std::int64_t& taken = out[static_cast<std::size_t>(stage)];
    while (left > stage) {
      const std::int64_t next = sizes.blocks[static_cast<std::size_t>(left - 1)];
      if (stage > 0 && taken > 0 && sum + next > most) break;
      sum += next;
      ++taken;
      --left;
    }
    if (sum > most) return {};
  }
  return out;
}

}  // namespace

std::vector<std::int64_t> divide_blocks(const Architecture& whole, Head head, std::int64_t stages) {
  if (!whole.pipeline.layout.empty()) return whole.pipeline.layout;
  const Sizes sizes = sizes_of(whole, head);
  std::int64_t low = 0, high = sizes.first + sizes.last;
  for (const std::int64_t block : sizes.blocks) high += block;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (fill(sizes, stages, middle).empty()) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return fill(sizes, stages, high);
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

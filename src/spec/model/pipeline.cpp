#include "spec/model/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "spec/model/layout.h"

namespace neap::spec {
namespace {

// Sizes of a block, and of what the first and the last part have in addition. All blocks of a model
// are equal.
struct PartSizes {
  std::int64_t block = 0, first = 0, last = 0;
  [[nodiscard]] std::int64_t of(std::int64_t part, std::int64_t parts, std::int64_t blocks) const {
    return blocks * block + (part == 0 ? first : 0) + (part + 1 == parts ? last : 0);
  }
};

// Elements of the matrices that a token is multiplied by. Embedding lookups count as zero.
PartSizes work_of(const Architecture& whole, Head head) {
  PartSizes out;
  for (const Linear& linear : block_linears(whole)) out.block += linear.in * linear.out;
  const bool words = head == Head::kLanguageModel;
  out.last = words ? whole.embedding_dim * whole.vocab_size : whole.hidden_size;
  if (!whole.projects_embedding()) return out;
  out.first = whole.embedding_dim * whole.hidden_size;
  if (words) out.last += out.first;
  return out;
}

// Parameters, which determine the bytes of weights, gradients and optimizer states.
PartSizes parameters_of(const Architecture& whole, Head head) {
  PartSizes out;
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

// The largest number of blocks per part whose work is at most `most`; empty if some part gets none.
std::vector<std::int64_t> most_blocks(const PartSizes& work, std::int64_t parts,
                                      std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t left = most - work.of(part, parts, 0);
    if (left < work.block) return {};
    out.push_back(left / work.block);
  }
  return out;
}

// As above, for the division that minimises the work of the largest part.
std::vector<std::int64_t> most_blocks(const PartSizes& work, std::int64_t parts,
                                      std::int64_t blocks, std::int64_t low, std::int64_t high) {
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const std::vector<std::int64_t> most = most_blocks(work, parts, middle);
    if (std::accumulate(most.begin(), most.end(), std::int64_t{0}) < blocks) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return most_blocks(work, parts, high);
}

// Parts of all stages.
std::int64_t parts_of(const Architecture& whole, std::int64_t stages) {
  return stages == 1 ? 1 : stages * whole.pipeline.chunks;
}

Status too_many_parts(const Architecture& whole, std::int64_t stages, std::string_view name) {
  const std::int64_t blocks = whole.num_hidden_layers, chunks = whole.pipeline.chunks;
  if (chunks == 1 || stages > blocks) {
    return {ErrorCode::kInvalidArgument,
            format("pipeline_model_parallel_size {} is more than the {} blocks of the "
                   "{} model; every stage has one at least",
                   stages, blocks, name)};
  }
  return {
      ErrorCode::kInvalidArgument,
      format("parallel.virtual_pipeline_model_parallel_size {} and {} stages are {} parts, more "
             "than the {} blocks of the {} model; every part has one at least: take {} at most",
             chunks, stages, chunks * stages, blocks, name, blocks / stages)};
}

}  // namespace

std::vector<std::int64_t> divide_blocks(const Architecture& whole, Head head, std::int64_t stages) {
  if (!whole.pipeline.layout.empty()) return whole.pipeline.layout;
  const std::int64_t parts = parts_of(whole, stages);
  const PartSizes work = work_of(whole, head), parameters = parameters_of(whole, head);
  const std::int64_t blocks = whole.num_hidden_layers;
  const std::vector<std::int64_t> most =
      most_blocks(work, parts, blocks, 0, work.first + work.last + blocks * work.block);
  std::vector<std::int64_t> out(static_cast<std::size_t>(parts), 1);
  const auto elements = [&](std::int64_t part) {
    return parameters.of(part, parts, out[static_cast<std::size_t>(part)]);
  };
  const auto of_stage = [&](std::int64_t part) {
    std::int64_t sum = 0;
    for (std::int64_t p = part % stages; p < parts; p += stages) sum += elements(p);
    return sum;
  };
  // Adds each remaining block to the part where the result is smallest.
  for (std::int64_t left = blocks - parts; left > 0; --left) {
    std::int64_t chosen = -1;
    std::pair<std::int64_t, std::int64_t> least;
    for (std::int64_t part = parts; part-- > 0;) {
      const auto p = static_cast<std::size_t>(part);
      const std::pair now(elements(part), of_stage(part));
      if (out[p] == most[p] || (chosen >= 0 && now >= least)) continue;
      chosen = part;
      least = now;
    }
    ++out[static_cast<std::size_t>(chosen)];
  }
  return out;
}

Result<Architecture> stage_of(const Architecture& whole, Head head, std::int64_t stages,
                              std::int64_t stage, std::string_view name) {
  if (stages == 1) return whole;
  const std::int64_t parts = parts_of(whole, stages);
  if (parts > whole.num_hidden_layers) return too_many_parts(whole, stages, name);
  const std::vector<std::int64_t> blocks = divide_blocks(whole, head, stages);
  if (const std::int64_t sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
      std::ssize(blocks) != parts || sum != whole.num_hidden_layers) {
    const std::int64_t chunks = whole.pipeline.chunks;
    return Status(
        ErrorCode::kInvalidArgument,
        format("pipeline_model_parallel_layout has {} {} with {} blocks; "
               "the {} model has {} blocks for {} stages{}",
               blocks.size(), chunks == 1 ? "stages" : "parts", sum, name, whole.num_hidden_layers,
               stages, chunks == 1 ? "" : format(" of {} chunks, {} parts", chunks, parts)));
  }
  Architecture out = whole;
  out.pipeline.stages = stages;
  out.pipeline.stage = stage;
  out.pipeline.ranges.clear();
  std::int64_t first = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t count = blocks[static_cast<std::size_t>(part)];
    if (part % stages == stage) out.pipeline.ranges.push_back({first, count});
    first += count;
  }
  return out;
}

std::int64_t stage_of_unit(const Architecture& whole, Head head, std::int64_t stages,
                           const FlatUnit& unit) {
  if (unit.block < 0) return unit.find(Module::kTokenEmbedding) != nullptr ? 0 : stages - 1;
  const std::vector<std::int64_t> blocks = divide_blocks(whole, head, stages);
  std::int64_t part = 0;
  for (std::int64_t end = blocks[0]; unit.block >= end;)
    end += blocks[static_cast<std::size_t>(++part)];
  return part % stages;
}

Architecture undivided(Architecture stage) {
  PipelineStage whole;
  whole.chunks = stage.pipeline.chunks;
  whole.zero_bubble = stage.pipeline.zero_bubble;
  whole.layout = std::move(stage.pipeline.layout);
  stage.pipeline = std::move(whole);
  return stage;
}

}  // namespace neap::spec

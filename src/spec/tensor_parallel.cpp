#include "spec/tensor_parallel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "spec/wrong.h"

namespace neap::spec {
namespace {

using Range = ParameterCut::Range;

struct Size {
  const char* name;
  std::int64_t value;
};
std::vector<Size> divided_sizes(const Architecture& a) {
  return {{"attention heads", a.num_attention_heads},
          {"MLP columns", a.intermediate_size},
          {"tokens of the vocabulary", a.vocab_size}};
}

// A key head that several ranks have goes with a matrix of keys alone, and with norms of each head.
bool copies_key_heads(const Architecture& a) {
  return a.qkv == QkvLayout::kSeparate && !a.norm_across_heads;
}
bool divides_key_heads(const Architecture& a, std::int64_t ranks) {
  const std::int64_t heads = a.num_key_value_heads;
  return heads % ranks == 0 || (copies_key_heads(a) && ranks % heads == 0);
}

bool divides(const Architecture& a, std::int64_t ranks) {
  for (const Size& size : divided_sizes(a))
    if (size.value % ranks != 0) return false;
  return divides_key_heads(a, ranks);
}

std::string possible_sizes(const Architecture& a) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t ranks = 1; ranks <= a.num_attention_heads; ++ranks)
    if (divides(a, ranks)) sizes.push_back(ranks);
  return joined(sizes, ", ");
}

// Equal parts of `all`, of which this is one.
Range share(std::int64_t all, const TensorShard& shard) {
  return {shard.rank * all / shard.ranks, all / shard.ranks};
}
Range query_range(const Architecture& a, const TensorShard& shard) {
  return share(a.query_width(), shard);
}
Range key_range(const Architecture& a, const TensorShard& shard) {
  const std::int64_t heads = a.num_key_value_heads;
  const std::int64_t count = std::max<std::int64_t>(1, heads / shard.ranks);
  return {shard.rank * heads / shard.ranks * a.head_dim, count * a.head_dim};
}
Range behind(Range range, std::int64_t first) {
  return {range.first + first, range.count};
}

// Outputs of a matrix that a rank has; none: all of them.
std::vector<Range> output_ranges(const Architecture& a, const TensorShard& shard, Module module) {
  const std::int64_t inner = a.intermediate_size;
  switch (module) {
    case Module::kTokenEmbedding:
    case Module::kLmHead:
      return {share(a.vocab_size, shard)};
    case Module::kQuery:
      return {query_range(a, shard)};
    case Module::kKey:
    case Module::kValue:
      return {key_range(a, shard)};
    case Module::kQueryKeyValue: {
      if (a.qkv == QkvLayout::kPerHead) return {share(3 * a.query_width(), shard)};
      const Range keys = behind(key_range(a, shard), a.query_width());
      return {query_range(a, shard), keys, behind(keys, a.key_value_width())};
    }
    case Module::kGate:
    case Module::kUp:
      return {share(inner, shard)};
    case Module::kGateUp:
      return {share(inner, shard), behind(share(inner, shard), inner)};
    default:
      return {};
  }
}
// Inputs.
std::vector<Range> input_ranges(const Architecture& a, const TensorShard& shard, Module module) {
  if (module == Module::kAttentionOut) return {query_range(a, shard)};
  if (module == Module::kDown) return {share(a.intermediate_size, shard)};
  return {};
}

}  // namespace

Result<Architecture> part_of(const Architecture& whole, const TensorShard& shard,
                             std::string_view name) {
  Architecture out = whole;
  if (shard.ranks == 1) return out;
  const auto refused = [&](const std::string& why) {
    return wrong(
        format("parallel.tensor_model_parallel_size {} does not go with the {} model: {}. "
               "Possible: {}",
               shard.ranks, name, why, possible_sizes(whole)));
  };
  for (const Size& size : divided_sizes(whole)) {
    if (size.value % shard.ranks != 0)
      return refused(format("it does not divide its {} {}", size.value, size.name));
  }
  if (!divides_key_heads(whole, shard.ranks))
    return refused(format("it does not divide its {} key heads{}", whole.num_key_value_heads,
                          copies_key_heads(whole) ? ", nor is it a multiple of them" : ""));
  out.tensor = shard;
  out.key_parts = std::min(shard.ranks, whole.num_key_value_heads);
  out.num_attention_heads /= shard.ranks;
  out.num_key_value_heads /= out.key_parts;
  out.intermediate_size /= shard.ranks;
  out.vocab_size /= shard.ranks;
  return out;
}

ParameterCut cut_of(const Architecture& whole, const TensorShard& shard,
                    const Parameter& parameter) {
  if (shard.ranks == 1) return {};
  const bool input_first = whole.input_major && parameter.part == Part::kWeight;
  const bool table =
      parameter.module == Module::kTokenEmbedding || parameter.module == Module::kLmHead;
  ParameterCut cut;
  if (parameter.part != Part::kLoraA) {
    cut.ranges = output_ranges(whole, shard, parameter.module);
    cut.dimension = input_first && !table ? 1 : 0;
  }
  if (cut.ranges.empty() && (parameter.part == Part::kWeight || parameter.part == Part::kLoraA)) {
    cut.ranges = input_ranges(whole, shard, parameter.module);
    cut.dimension = input_first ? 0 : 1;
  }
  if (cut.ranges.empty()) cut.dimension = -1;
  return cut;
}

std::vector<SpreadRange> spread_ranges(const FlatUnit& unit) {
  std::vector<SpreadRange> out;
  for (const Parameter& p : unit.parameters) {
    if (out.empty() || out.back().spread != p.spread) out.push_back({p.offset, 0, p.spread});
    out.back().count = p.offset + p.elements() - out.back().first;
  }
  // With the padding behind.
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i].count = (i + 1 < out.size() ? out[i + 1].first : unit.elements) - out[i].first;
  return out;
}

}  // namespace neap::spec

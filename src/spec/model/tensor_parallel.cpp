#include "spec/model/tensor_parallel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "spec/types/wrong.h"

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

// Copies of key heads require a separate key matrix, and norms per head.
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

// This shard's range of `all`, which is divided evenly.
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

// The ranges that a rank has.
std::vector<Range> own_ranges(const Architecture& a, const TensorShard& shard, Module module) {
  const std::int64_t inner = a.intermediate_size;
  switch (traits_of(module).width) {
    case DividedWidth::kNone:
      break;
    case DividedWidth::kVocabulary:
      return {share(a.vocab_size, shard)};
    case DividedWidth::kQueryHeads:
      return {query_range(a, shard)};
    case DividedWidth::kKeyHeads:
      return {key_range(a, shard)};
    case DividedWidth::kAllHeads: {
      if (a.qkv == QkvLayout::kPerHead) return {share(3 * a.query_width(), shard)};
      const Range keys = behind(key_range(a, shard), a.query_width());
      return {query_range(a, shard), keys, behind(keys, a.key_value_width())};
    }
    case DividedWidth::kInner:
      return {share(inner, shard)};
    case DividedWidth::kTwoInner:
      return {share(inner, shard), behind(share(inner, shard), inner)};
  }
  return {};
}

}  // namespace

Result<Architecture> part_of(const Architecture& whole, const TensorShard& shard,
                             std::string_view name) {
  Architecture out = whole;
  if (shard.ranks == 1) return out;
  const auto refused = [&](const std::string& why) {
    return wrong(
        format("tensor_model_parallel_size {} does not go with the {} model: {}. "
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

int cut_dimension(const Architecture& a, Module module, Part part) {
  const ModuleTraits& traits = traits_of(module);
  const bool table = traits.width == DividedWidth::kVocabulary;
  const bool input_first = a.input_major && part == Part::kWeight && !table;
  // A bias follows the outputs. In an adapter, A follows the inputs and B the outputs.
  if (traits.divided == DividedSide::kOutputs && part != Part::kLoraA) return input_first ? 1 : 0;
  if (traits.divided == DividedSide::kInputs && (part == Part::kWeight || part == Part::kLoraA))
    return input_first ? 0 : 1;
  return -1;
}

ParameterCut cut_of(const Architecture& whole, const TensorShard& shard,
                    const Parameter& parameter) {
  if (shard.ranks == 1) return {};
  ParameterCut cut;
  cut.dimension = cut_dimension(whole, parameter.module, parameter.part);
  if (cut.cuts()) cut.ranges = own_ranges(whole, shard, parameter.module);
  return cut;
}

std::vector<SpreadRange> spread_ranges(const FlatUnit& unit) {
  std::vector<SpreadRange> out;
  for (const Parameter& p : unit.parameters) {
    const Spread spread{p.spread.parts, p.spread.summed};
    if (out.empty() || out.back().spread != spread) out.push_back({p.offset, 0, spread});
    out.back().count = p.offset + p.elements() - out.back().first;
  }
  // Includes the padding that follows.
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i].count = (i + 1 < out.size() ? out[i + 1].first : unit.elements) - out[i].first;
  return out;
}

}  // namespace neap::spec

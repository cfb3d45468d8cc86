#include "spec/model/layout.h"

#include <algorithm>

#include "base/format.h"
#include "spec/model/architecture_file.h"
#include "spec/model/tensor_parallel.h"

namespace neap::spec {
namespace {

const ModuleNames& names_of(const Architecture& a) {
  static const ModuleNames kNone = {};
  const ArchitectureFile* file = find_architecture_file(a.model_type);
  return file != nullptr ? file->names : kNone;
}

// Which ranks have a parameter. spec/model/tensor_parallel.cpp says which elements.
Spread spread_of(const Architecture& a, Module module, Part part) {
  const std::int64_t ranks = a.tensor.ranks;
  if (ranks == 1) return {};
  const Spread copied{}, summed{1, true};
  if (const int dimension = cut_dimension(a, module, part); dimension >= 0) {
    const std::int64_t parts =
        traits_of(module).width == DividedWidth::kKeyHeads ? a.key_parts : ranks;
    return {parts, parts < ranks, dimension};
  }
  // For the replicated factor of an adapter, each rank computes a term of the gradient.
  if (part == Part::kLoraA || part == Part::kLoraB) return summed;
  switch (traits_of(module).gradient) {
    case ReplicatedGradient::kHeads:
      return a.norm_across_heads ? copied : summed;
    case ReplicatedGradient::kTokens:
      return a.tensor.divides_rows ? summed : copied;
    case ReplicatedGradient::kAll:
      break;
  }
  return copied;
}

// Collects a unit's parameters and aligns their offsets.
class UnitBuilder {
 public:
  /// `prefix` is put before every module's name.
  UnitBuilder(const Architecture& a, std::string unit, std::string prefix = "")
      : architecture_(a), names_(names_of(a)), prefix_(std::move(prefix)) {
    unit_.name = std::move(unit);
  }
  UnitBuilder(const Architecture& a, std::int64_t block, const std::string& prefix = "")
      : UnitBuilder(a, format("block.{}", block), prefix + block_prefix(a, block) + ".") {
    unit_.block = block;
  }
  void add(Module module, Part part, const std::string& name, std::vector<std::int64_t> shape) {
    Parameter p{name,           std::move(shape),
                unit_.elements, module,
                part,           spread_of(architecture_, module, part)};
    const std::int64_t end = p.offset + p.elements();
    unit_.elements = (end + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
    unit_.parameters.push_back(std::move(p));
  }
  void add_weight(Module module, std::vector<std::int64_t> shape) {
    add(module, Part::kWeight, name(module) + ".weight", std::move(shape));
  }
  void add_norm(Module module, std::int64_t width) {
    add_weight(module, {width});
    if (architecture_.norm == NormKind::kLayerNorm)
      add(module, Part::kBias, name(module) + ".bias", {width});
  }
  void add_linear(const Linear& l) {
    add_weight(l.module, architecture_.input_major ? std::vector<std::int64_t>{l.in, l.out}
                                                   : std::vector<std::int64_t>{l.out, l.in});
    if (l.bias) add(l.module, Part::kBias, name(l.module) + ".bias", {l.out});
  }
  [[nodiscard]] std::string name(Module module) const {
    return prefix_ + std::string(names_[module]);
  }
  [[nodiscard]] FlatUnit take() { return std::move(unit_); }

 private:
  const Architecture& architecture_;
  const ModuleNames& names_;
  std::string prefix_;
  FlatUnit unit_;
};

FlatUnit embedding_unit(const Architecture& a) {
  UnitBuilder u(a, "embed");
  u.add_weight(Module::kTokenEmbedding, {a.vocab_size, a.embedding_dim});
  if (a.learned_positions)
    u.add_weight(Module::kPositionEmbedding,
                 {a.max_position_embeddings + a.position_offset, a.hidden_size});
  if (a.projects_embedding()) u.add_weight(Module::kProjectIn, {a.hidden_size, a.embedding_dim});
  if (a.embedding_norm) u.add_norm(Module::kEmbeddingNorm, a.hidden_size);
  return u.take();
}

// The modules of a block, in forward order.
FlatUnit block_unit(const Architecture& a, std::int64_t i, const std::vector<Linear>& linears) {
  UnitBuilder u(a, i);
  const bool norm_behind = a.placement.after || a.placement.over;
  if (a.placement.before) u.add_norm(Module::kAttentionNorm, a.hidden_size);
  const auto of_heads = [](const Linear& l) {
    const ModuleTraits& traits = traits_of(l.module);
    return traits.place == ModulePlace::kAttention && traits.divided == DividedSide::kOutputs;
  };
  for (const Linear& l : linears)
    if (of_heads(l)) u.add_linear(l);
  if (a.query_key_norm) {
    // The norm spans the heads of all ranks.
    const std::int64_t ranks = a.tensor.ranks;
    u.add_norm(Module::kQueryNorm, a.norm_across_heads ? ranks * a.query_width() : a.head_dim);
    u.add_norm(Module::kKeyNorm, a.norm_across_heads ? ranks * a.key_value_width() : a.head_dim);
  }
  for (const Linear& l : linears)
    if (l.module == Module::kAttentionOut) u.add_linear(l);
  if (norm_behind) u.add_norm(Module::kAttentionAfterNorm, a.hidden_size);
  if (a.placement.before) u.add_norm(Module::kMlpNorm, a.hidden_size);
  for (const Linear& l : linears)
    if (traits_of(l.module).place == ModulePlace::kMlp) u.add_linear(l);
  if (norm_behind) u.add_norm(Module::kMlpAfterNorm, a.hidden_size);
  return u.take();
}

FlatUnit head_unit(const Architecture& a, Head head) {
  UnitBuilder u(a, "head");
  if (a.final_norm) u.add_norm(Module::kFinalNorm, a.hidden_size);
  if (a.projects_embedding()) u.add_weight(Module::kProjectOut, {a.embedding_dim, a.hidden_size});
  if (head == Head::kScalar)
    u.add_weight(Module::kScore, {1, a.embedding_dim});
  else if (!a.tie_word_embeddings)
    u.add_weight(Module::kLmHead, {a.vocab_size, a.embedding_dim});
  return u.take();
}

}  // namespace

std::int64_t Parameter::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

const Parameter* FlatUnit::find(Module module, Part part) const {
  const auto it = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& p) {
    return p.module == module && p.part == part;
  });
  return it == parameters.end() ? nullptr : &*it;
}

std::optional<Neighbours> joined_parameters(const FlatUnit& unit,
                                            const std::vector<Module>& modules, Part part) {
  std::optional<Neighbours> all;
  std::int64_t end = 0;
  for (const Module module : modules) {
    const Parameter* const next = unit.find(module, part);
    if (next == nullptr) return std::nullopt;
    if (!all) {
      all = Neighbours{next->offset, next->shape};
    } else {
      if (next->offset != end || !std::equal(next->shape.begin() + 1, next->shape.end(),
                                             all->shape.begin() + 1, all->shape.end()))
        return std::nullopt;
      all->shape[0] += next->shape[0];
    }
    end = next->offset + next->elements();
  }
  return all;
}

std::optional<Neighbours> stacked_parameters(const FlatUnit& unit,
                                             const std::vector<Module>& modules, Part part) {
  std::vector<const Parameter*> found;
  for (const Module module : modules) {
    const Parameter* const next = unit.find(module, part);
    if (next == nullptr) return std::nullopt;
    found.push_back(next);
  }
  Neighbours all{found[0]->offset, found[0]->shape, found[1]->offset - found[0]->offset};
  for (std::size_t i = 1; i < found.size(); ++i)
    if (found[i]->shape != found[0]->shape || found[i]->offset != found[i - 1]->offset + all.stride)
      return std::nullopt;
  all.shape.insert(all.shape.begin(), std::ssize(found));
  return all;
}

std::string block_prefix(const Architecture& a, std::int64_t block) {
  const ArchitectureFile* file = find_architecture_file(a.model_type);
  return format("{}.{}", file != nullptr ? file->blocks : "", block);
}

std::vector<Linear> block_linears(const Architecture& a) {
  const std::int64_t h = a.hidden_size;
  const std::int64_t inner = a.intermediate_size;
  const std::int64_t q = a.query_width();
  const std::int64_t kv = a.key_value_width();
  const ModuleNames& names = names_of(a);
  std::vector<Linear> linears;
  const auto add = [&](Module module, std::int64_t in, std::int64_t out, bool bias) {
    linears.push_back({module, std::string(names[module]), in, out, bias});
  };
  if (a.qkv == QkvLayout::kSeparate) {
    add(Module::kQuery, h, q, a.attention_bias);
    add(Module::kKey, h, kv, a.attention_bias);
    add(Module::kValue, h, kv, a.attention_bias);
  } else {
    add(Module::kQueryKeyValue, h, q + 2 * kv, a.attention_bias);
  }
  add(Module::kAttentionOut, q, h, a.attention_output_bias);
  if (a.fused_gate) {
    add(Module::kGateUp, h, 2 * inner, a.mlp_bias);
  } else {
    if (a.gated) add(Module::kGate, h, inner, a.mlp_bias);
    add(Module::kUp, h, inner, a.mlp_bias);
  }
  add(Module::kDown, inner, h, a.mlp_bias);
  return linears;
}

bool copies_table(const Architecture& a, Head head) {
  return a.ties_table(head) && a.has_head() && !a.embeds();
}

std::vector<FlatUnit> flat_layout(const Architecture& a, Head head) {
  std::vector<FlatUnit> units;
  if (a.embeds() || copies_table(a, head)) units.push_back(embedding_unit(a));
  const std::vector<Linear> linears = block_linears(a);
  for (std::int64_t i = 0; i < a.blocks(); ++i)
    units.push_back(block_unit(a, a.block_at(i), linears));
  if (!a.has_head()) return units;
  if (FlatUnit unit = head_unit(a, head); !unit.parameters.empty())
    units.push_back(std::move(unit));
  return units;
}

Status check_lora(const Architecture& a, const LoraShape& lora) {
  if (!lora.modules.empty()) return {};  // an adapter's file was checked when it was read
  const std::vector<Linear> linears = block_linears(a);
  for (const std::string& target : lora.targets) {
    const LoraShape one{.rank = lora.rank, .targets = {target}};
    if (std::none_of(linears.begin(), linears.end(),
                     [&](const Linear& l) { return one.of(l.name).rank > 0; })) {
      std::string known;
      for (const Linear& l : linears)
        known += (known.empty() ? "" : ", ") + l.name.substr(l.name.rfind('.') + 1);
      return {ErrorCode::kInvalidArgument,
              format("target_modules has \"{}\"; the model's linear layers are {}", target, known)};
    }
  }
  for (const Linear& l : linears) {
    if (lora.of(l.name).rank > a.tensor.ranks * std::min(l.in, l.out))
      return {ErrorCode::kInvalidArgument, format("lora_rank {} is over the width of {} ({} to {})",
                                                  lora.rank, l.name, l.in, l.out)};
  }
  return {};
}

std::vector<FlatUnit> lora_layout(const Architecture& a, Head head, const LoraShape& lora) {
  std::vector<FlatUnit> units;
  if (lora.rank <= 0) return units;
  const std::vector<Linear> linears = block_linears(a);
  const std::string prefix(kPeftPrefix);
  for (std::int64_t i = 0; i < a.blocks(); ++i) {
    UnitBuilder u(a, a.block_at(i), prefix);
    for (const Linear& l : linears) {
      const std::string name = u.name(l.module);
      const std::int64_t rank = lora.of(std::string_view(name).substr(prefix.size())).rank;
      if (rank == 0) continue;
      u.add(l.module, Part::kLoraA, name + ".lora_A.weight", {rank, l.in});
      u.add(l.module, Part::kLoraB, name + ".lora_B.weight", {l.out, rank});
    }
    // An adapter may skip blocks.
    if (FlatUnit unit = u.take(); !unit.parameters.empty()) units.push_back(std::move(unit));
  }
  if (head == Head::kScalar && a.has_head()) {
    UnitBuilder u(a, "head", prefix);
    u.add_weight(Module::kScore, {1, a.embedding_dim});
    units.push_back(u.take());
  }
  return units;
}

std::vector<std::size_t> numbers_in(const std::vector<FlatUnit>& whole,
                                    const std::vector<FlatUnit>& part) {
  std::vector<std::size_t> out;
  for (const FlatUnit& unit : part) {
    const auto same = std::find_if(whole.begin(), whole.end(),
                                   [&](const FlatUnit& each) { return each.name == unit.name; });
    out.push_back(static_cast<std::size_t>(same - whole.begin()));
  }
  return out;
}

std::vector<FlatUnit> units_of(const std::vector<FlatUnit>& whole,
                               const std::vector<std::size_t>& numbers) {
  std::vector<FlatUnit> out;
  out.reserve(numbers.size());
  for (const std::size_t number : numbers) out.push_back(whole.at(number));
  return out;
}

std::int64_t total_elements(const std::vector<FlatUnit>& units) {
  std::int64_t sum = 0;
  for (const FlatUnit& unit : units) sum += unit.elements;
  return sum;
}

}  // namespace neap::spec

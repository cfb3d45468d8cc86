#include "weights/adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "base/format.h"
#include "base/status.h"
#include "ops/transformer.h"
#include "weights/tensor_io.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

// A parameter's name split into "model.layers.0.self_attn.q_proj" and its last part.
struct NameParts {
  std::string module, leaf;
};
NameParts parts_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// Path of a head that is tied to the embeddings and so has no parameter; else empty.
std::string tied_head(const spec::Architecture& shape) {
  if (!shape.tie_word_embeddings) return {};
  spec::Architecture untied = shape;
  untied.tie_word_embeddings = false;
  for (const spec::FlatUnit& unit : spec::flat_layout(untied, spec::Head::kLanguageModel)) {
    if (const spec::Parameter* head = unit.find(spec::Module::kLmHead))
      return parts_of(head->name).module;
  }
  return {};
}

}  // namespace

FolderAdapter::FolderAdapter(const fs::path& folder, const spec::Architecture& shape,
                             const std::vector<spec::FlatUnit>& units, const OpenFolders& folders)
    : file_(folders.adapter(folder)), input_major_(shape.input_major) {
  const spec::AdapterConfig config =
      value_or_throw(spec::AdapterConfig::from_folder(folder, shape));
  std::set<std::string_view> used;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const spec::Parameter& p : units[u].parameters) {
      Change change = find_change(p, config);
      change.unit = u;
      bool changes = false;
      for (const TensorEntry* entry : {change.whole, change.a, change.b, change.magnitudes}) {
        if (entry == nullptr) continue;
        used.insert(entry->name);
        changes = true;
      }
      if (changes) changes_.push_back(std::move(change));
    }
  }
  for (const TensorEntry& entry : file_.tensors()) {
    // The adapter of a reward model contains a head, which a language model ignores.
    if (used.contains(entry.name) || entry.name == format("{}score.weight", spec::kPeftPrefix))
      continue;
    const std::string head = tied_head(shape);
    if (!head.empty() && entry.name.starts_with(format("{}{}.", spec::kPeftPrefix, head))) {
      throw Error(
          ErrorCode::kUnsupported,
          format("{} has the tensor \"{}\", but the base's head \"{}\" is tied with its embeddings "
                 "(tie_word_embeddings) and has no weights of its own. Train the adapter without "
                 "\"{}\", or let PEFT merge it and save the model with tie_word_embeddings = false",
                 file_.path().string(), entry.name, head, head));
    }
    throw Error(ErrorCode::kUnsupported,
                format("{} has the tensor \"{}\", which has no place in this model as {} describes "
                       "the adapter",
                       file_.path().string(), entry.name, spec::kAdapterConfig));
  }
}

FolderAdapter::Change FolderAdapter::find_change(const spec::Parameter& parameter,
                                                 const spec::AdapterConfig& config) const {
  const auto [module, leaf] = parts_of(parameter.name);
  const std::string start = std::string(spec::kPeftPrefix) + module + ".";
  Change out;
  out.parameter = parameter;
  const auto find = [&](const std::string& name, const std::vector<std::int64_t>& wanted) {
    const TensorEntry* entry = file_.find(start + name);
    if (entry != nullptr) check_tensor(file_, *entry, wanted, at::kFloat);
    return entry;
  };
  const auto lacks = [&](const std::string& name) {
    return Error(ErrorCode::kCorrupt,
                 format("{} has no tensor \"{}\", which {} asks for", file_.path().string(),
                        start + name, spec::kAdapterConfig));
  };
  // PEFT wraps each layer that it adapts.
  for (const std::string& name : {leaf, "base_layer." + leaf})
    if (out.whole == nullptr) out.whole = find(name, parameter.shape);
  if (config.saves(module) && out.whole == nullptr) throw lacks(leaf);
  const spec::LoraModule lora = config.lora.of(module);
  if (lora.rank == 0 || leaf != "weight") return out;
  const std::int64_t rows = parameter.shape.at(input_major_ ? 1 : 0);
  const std::int64_t columns = parameter.shape.at(input_major_ ? 0 : 1);
  out.a = find("lora_A.weight", {lora.rank, columns});
  out.b = find("lora_B.weight", {rows, lora.rank});
  if (out.a == nullptr) throw lacks("lora_A.weight");
  if (out.b == nullptr) throw lacks("lora_B.weight");
  out.scale = config.lora.scale(lora);
  if (!config.magnitudes) return out;
  constexpr const char* kMagnitudes = "lora_magnitude_vector";
  out.magnitudes = find(kMagnitudes, {rows});
  if (out.magnitudes == nullptr) throw lacks(kMagnitudes);
  return out;
}

bool FolderAdapter::replaces(std::string_view parameter) const {
  return std::any_of(changes_.begin(), changes_.end(), [&](const Change& change) {
    return change.parameter.name == parameter && change.whole != nullptr;
  });
}

void FolderAdapter::apply(std::size_t unit, const Tensor& flat) const {
  const at::NoGradGuard no_grad;
  for (const Change& change : changes_) {
    if (change.unit != unit) continue;
    const Tensor target = ops::parameter_view(flat, change.parameter);
    if (change.whole != nullptr) read_tensors({{&file_, change.whole, target}});
    if (change.a != nullptr) add_product(change, target);
  }
}

void FolderAdapter::add_product(const Change& change, const Tensor& target) const {
  const at::ScalarType wide = target.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto read = [&](const TensorEntry* entry) { return read_float(file_, *entry).to(wide); };
  const Tensor delta = at::mm(read(change.b), read(change.a)).mul_(change.scale);  // (out, in)
  Tensor sum = target.to(at::kCPU, wide).add(input_major_ ? delta.t() : delta);
  if (change.magnitudes != nullptr) {
    const std::int64_t columns = input_major_ ? 0 : 1;
    const Tensor norms = sum.square().sum(columns, true).sqrt();
    sum.mul_(read(change.magnitudes).view_as(norms) / norms);
  }
  target.copy_(sum);
}

}  // namespace neap::weights

// A folder's LoRA adapter into the weights that it adapts.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/status.h"
#include "model/checkpoint.h"
#include "model/checkpoint_detail.h"
#include "model/safetensors.h"

namespace neap::model {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

struct AdapterConfig {
  std::int64_t rank = 0;
  double scale = 0;
};

AdapterConfig read_config(const fs::path& path) {
  const Json config =
      value_or_throw(parse_json(value_or_throw(read_file(path, 16_MiB)), path.string()));
  const auto refuse = [&](const std::string& why) -> Error {
    return {ErrorCode::kUnsupported, format("{}: {}", path.string(), why)};
  };
  if (!config.is_object() || config.value("peft_type", Json()) != "LORA")
    throw refuse("only adapters of \"peft_type\": \"LORA\" are read");
  for (const char* key : {"use_dora", "alora_invocation_tokens", "rank_pattern", "alpha_pattern"}) {
    const Json value = config.value(key, Json());
    if (!value.is_null() && value != false && !value.empty())
      throw refuse(format("\"{}\" is not supported; merge the adapter with PEFT first", key));
  }
  const Json rank = config.value("r", Json()), alpha = config.value("lora_alpha", Json());
  if (!rank.is_number_integer() || rank.get<std::int64_t>() <= 0 || !alpha.is_number())
    throw refuse("\"r\" and \"lora_alpha\" have to be numbers, \"r\" over 0");
  AdapterConfig out{rank.get<std::int64_t>(), 0};
  const auto r = static_cast<double>(out.rank);
  const bool rank_stabilized = config.value("use_rslora", Json()) == true;
  out.scale = alpha.get<double>() / (rank_stabilized ? std::sqrt(r) : r);
  return out;
}

// What changes one parameter: A and B, or a tensor in its place.
struct Change {
  std::string parameter;
  Tensor target;
  std::string a, b, whole;  ///< names in the file
};

void check_shapes(const SafetensorsFile& file, const Change& change, const AdapterConfig& config,
                  bool input_major) {
  const at::IntArrayRef w = change.target.sizes();
  const std::int64_t out = w[input_major ? 1 : 0], in = w[input_major ? 0 : 1];
  const std::vector<std::int64_t> a{config.rank, in}, b{out, config.rank};
  if (file.find(change.a)->shape != a || file.find(change.b)->shape != b) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format(
            "{}: \"{}\" and its partner have not the shapes of rank {} for a matrix from {} to {}",
            file.path().string(), change.a, config.rank, in, out));
  }
}

std::vector<Change> changes_of(const SafetensorsFile& file, const spec::Architecture& shape,
                               spec::Head head, const std::vector<Tensor>& flat,
                               const AdapterConfig& config) {
  std::vector<Change> out;
  std::set<std::string> used;
  const auto has = [&](const std::string& name) {
    if (file.find(name) == nullptr) return false;
    used.insert(name);
    return true;
  };
  const auto units = spec::flat_layout(shape, head);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const spec::Parameter& p : units[u].parameters) {
      constexpr std::string_view kEnd = ".weight";
      const std::string module = std::string(kPrefix) + p.name.substr(0, p.name.rfind(kEnd));
      Change change{p.name, flat[u].narrow(0, p.offset, p.elements()).view(p.shape),
                    module + ".lora_A.weight", module + ".lora_B.weight", module + ".weight"};
      const bool adapted = has(change.a);
      if (adapted != has(change.b)) {
        throw Error(ErrorCode::kCorrupt, format("{} has only one of \"{}\" and \"{}\"",
                                                file.path().string(), change.a, change.b));
      }
      if (adapted) {
        check_shapes(file, change, config, shape.input_major);
        change.whole.clear();
      } else if (!has(change.whole)) {
        continue;
      }
      out.push_back(std::move(change));
    }
  }
  for (const TensorEntry& entry : file.tensors()) {
    // A language model has no place for the head that a reward model's adapter brings.
    if (used.count(entry.name) != 0 || entry.name == format("{}score.weight", kPrefix)) continue;
    throw Error(ErrorCode::kUnsupported,
                format("{} has the tensor \"{}\", which has no place in this model",
                       file.path().string(), entry.name));
  }
  return out;
}

Tensor read_float(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  const Tensor out = at::empty(entry->shape, at::kFloat);
  detail::read_into(file, *entry, out);
  return out;
}

Tensor delta_of(const SafetensorsFile& file, const Change& change, const AdapterConfig& config,
                bool input_major) {
  const Tensor delta =
      at::mm(read_float(file, change.b), read_float(file, change.a)).mul_(config.scale);
  return input_major ? delta.t() : delta;
}

}  // namespace

std::vector<std::string> merge_adapter(const fs::path& folder, const spec::Architecture& shape,
                                       spec::Head head, const std::vector<Tensor>& flat) {
  std::error_code ignored;
  std::vector<std::string> changed;
  if (!fs::exists(folder / kConfig, ignored)) return changed;
  const at::NoGradGuard no_grad;
  const AdapterConfig config = read_config(folder / kConfig);
  const SafetensorsFile file = SafetensorsFile::open(folder / kWeights);
  for (const Change& change : changes_of(file, shape, head, flat, config)) {
    changed.push_back(change.parameter);
    if (!change.whole.empty()) {
      detail::read_into(file, *file.find(change.whole), change.target);
      continue;
    }
    const Tensor delta = delta_of(file, change, config, shape.input_major);
    change.target.copy_(change.target.to(at::kCPU, at::kFloat).add(delta));
  }
  return changed;
}

}  // namespace neap::model

#include "model/adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/status.h"
#include "model/tensor_io.h"
#include "model/transformer.h"

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

void check_shapes(const SafetensorsFile& file, const spec::Parameter& parameter,
                  const std::string& name_a, const std::string& name_b, const AdapterConfig& config,
                  bool input_major) {
  const at::IntArrayRef w = parameter.shape;
  const std::int64_t out = w[input_major ? 1 : 0], in = w[input_major ? 0 : 1];
  const std::vector<std::int64_t> a{config.rank, in}, b{out, config.rank};
  if (file.find(name_a)->shape != a || file.find(name_b)->shape != b) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format(
            "{}: \"{}\" and its partner have not the shapes of rank {} for a matrix from {} to {}",
            file.path().string(), name_a, config.rank, in, out));
  }
}

}  // namespace

std::optional<FolderAdapter> FolderAdapter::open(const fs::path& folder,
                                                 const spec::Architecture& shape,
                                                 const std::vector<spec::FlatUnit>& units) {
  std::error_code ignored;
  if (!fs::exists(folder / kConfig, ignored)) return std::nullopt;
  const AdapterConfig config = read_config(folder / kConfig);
  FolderAdapter out(SafetensorsFile::open(folder / kWeights));
  out.scale_ = config.scale;
  out.input_major_ = shape.input_major;
  std::set<std::string> used;
  const auto has = [&](const std::string& name) {
    if (out.file_.find(name) == nullptr) return false;
    used.insert(name);
    return true;
  };
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const spec::Parameter& p : units[u].parameters) {
      constexpr std::string_view kEnd = ".weight";
      const std::string module = std::string(kPrefix) + p.name.substr(0, p.name.rfind(kEnd));
      Change change{u, p, module + ".lora_A.weight", module + ".lora_B.weight", module + ".weight"};
      const bool adapted = has(change.a);
      if (adapted != has(change.b)) {
        throw Error(ErrorCode::kCorrupt, format("{} has only one of \"{}\" and \"{}\"",
                                                out.file_.path().string(), change.a, change.b));
      }
      if (adapted) {
        check_shapes(out.file_, p, change.a, change.b, config, shape.input_major);
        change.whole.clear();
      } else if (!has(change.whole)) {
        continue;
      }
      out.changes_.push_back(std::move(change));
    }
  }
  for (const TensorEntry& entry : out.file_.tensors()) {
    // A language model has no place for the head that a reward model's adapter brings.
    if (used.contains(entry.name) || entry.name == format("{}score.weight", kPrefix)) continue;
    throw Error(ErrorCode::kUnsupported,
                format("{} has the tensor \"{}\", which has no place in this model",
                       out.file_.path().string(), entry.name));
  }
  return out;
}

std::vector<std::string> FolderAdapter::parameters() const {
  std::vector<std::string> names;
  for (const Change& change : changes_) names.push_back(change.parameter.name);
  return names;
}

bool FolderAdapter::replaces(std::string_view parameter) const {
  return std::any_of(changes_.begin(), changes_.end(), [&](const Change& change) {
    return change.parameter.name == parameter && !change.whole.empty();
  });
}

void FolderAdapter::apply(std::size_t unit, const Tensor& flat) const {
  const at::NoGradGuard no_grad;
  for (const Change& change : changes_) {
    if (change.unit != unit) continue;
    const spec::Parameter& p = change.parameter;
    const Tensor target = parameter_view(flat, p);
    if (!change.whole.empty()) {
      read_tensors({{&file_, file_.find(change.whole), target}});
      continue;
    }
    Tensor delta = at::mm(read_float(file_, entry_of(file_, change.b)),
                          read_float(file_, entry_of(file_, change.a)))
                       .mul_(scale_);
    if (input_major_) delta = delta.t();
    target.copy_(target.to(at::kCPU, at::kFloat).add(delta));
  }
}

}  // namespace neap::model

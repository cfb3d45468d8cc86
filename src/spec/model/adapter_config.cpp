#include "spec/model/adapter_config.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "spec/model/layout.h"
#include "spec/types/fields.h"
#include "spec/types/name_pattern.h"

namespace neap::spec {
namespace {

namespace fs = std::filesystem;

// A linear layer that PEFT could adapt.
struct Layer {
  std::string path;
  Module module = Module::kQuery;
  std::int64_t block = -1;
};

std::vector<Layer> linear_layers(const Architecture& model) {
  std::vector<Layer> out;
  constexpr std::string_view kEnd = ".weight";
  for (const FlatUnit& unit : flat_layout(model, Head::kLanguageModel)) {
    for (const Parameter& p : unit.parameters) {
      if (p.part != Part::kWeight || traits_of(p.module).kind != ModuleKind::kLinear) continue;
      out.push_back({p.name.substr(0, p.name.size() - kEnd.size()), p.module, unit.block});
    }
  }
  return out;
}

std::string shown(std::string_view text) {
  return excerpt(text, 100);
}

bool is_truthy(const Json& value) {
  return !value.is_null() && value != false && value != 0 &&
         !((value.is_structured() || value.is_string()) && value.empty());
}

// A set of names. A path is in it if the path, or any suffix of it after a dot, is one of the
// names.
class NameSet {
 public:
  explicit NameSet(const Json& list) {
    for (const Json& name : list) names_.insert(name.get<std::string>());
  }
  [[nodiscard]] bool covers(std::string_view path) const {
    for (;;) {
      if (names_.contains(path)) return true;
      const std::size_t dot = path.find('.');
      if (dot == std::string_view::npos) return false;
      path.remove_prefix(dot + 1);
    }
  }

 private:
  std::set<std::string, std::less<>> names_;
};

bool is_list_of_texts(const Json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
}

// target_modules and exclude_modules: a list of names, or one regular expression.
class ModuleChoice {
 public:
  static Result<ModuleChoice> read(Fields& f, const char* key) {
    ModuleChoice out;
    const Json& value = f.value(key);
    if (is_list_of_texts(value)) {
      out.names_.emplace(value);
    } else if (value.is_string() && value.get<std::string>() == kAllLinear) {
      out.all_linear_ = true;
    } else if (value.is_string()) {
      Result<NamePattern> pattern = NamePattern::compile(value.get<std::string>());
      if (!pattern.ok())
        f.refuse(key, pattern.status().message());
      else
        out.pattern_ = *std::move(pattern);
    } else {
      f.fail(key, "is neither a list of names nor a regular expression");
    }
    NEAP_TRY(f.status());
    return out;
  }
  [[nodiscard]] Result<bool> covers(const Layer& layer) const {
    if (names_) return names_->covers(layer.path);
    if (pattern_) return pattern_->matches(layer.path);
    return all_linear_ && layer.module != Module::kLmHead;
  }

 private:
  std::optional<NameSet> names_;
  std::optional<NamePattern> pattern_;
  bool all_linear_ = false;
};

// rank_pattern and alpha_pattern: the first key that matches a path or a suffix of it after a dot.
class NumberPattern {
 public:
  static Result<NumberPattern> read(Fields& f, const char* key, bool integers) {
    NumberPattern out;
    if (!f.has(key) || f.is_null(key)) return out;
    const Json& object = f.value(key);
    if (!object.is_object()) f.fail(key, "is not an object");
    NEAP_TRY(f.status());
    for (const auto& [name, value] : object.items()) {
      const bool right = integers ? value.is_number_integer() : value.is_number();
      const double number = right ? value.get<double>() : -1;
      if (!(number >= (integers ? 1 : 0)) || number > static_cast<double>(kMaxWidth))
        f.fail(key, format("has \"{}\" for \"{}\"", excerpt(value.dump(), 80), shown(name)));
      else
        NEAP_TRY(out.add(f, key, name, number));
      NEAP_TRY(f.status());
    }
    return out;
  }
  [[nodiscard]] Result<std::optional<double>> find(std::string_view path) const {
    const Entry* first = nullptr;
    for (std::string_view end = path;;) {
      const auto at = names_.find(end);
      if (at != names_.end() && (first == nullptr || at->second.place < first->place))
        first = &at->second;
      const std::size_t dot = end.find('.');
      if (dot == std::string_view::npos) break;
      end.remove_prefix(dot + 1);
    }
    for (const auto& [pattern, entry] : patterns_) {
      if (first != nullptr && first->place < entry.place) break;
      NEAP_TRY_ASSIGN(const bool matches, pattern.matches(path));
      if (matches) return std::optional(entry.number);
    }
    return first == nullptr ? std::optional<double>() : first->number;
  }

 private:
  struct Entry {
    std::size_t place = 0;
    double number = 0;
  };
  Status add(Fields& f, const char* key, const std::string& name, double number) {
    const Entry entry{names_.size() + patterns_.size(), number};
    // Most keys are plain names, and some files list every layer. Dots in names are literal.
    if (name.find_first_of("^$*+?()[]{}|\\") == std::string::npos) {
      names_.emplace(name, entry);
      return {};
    }
    Result<NamePattern> pattern = NamePattern::compile(format("(?:.*\\.)?(?:{})", name));
    if (!pattern.ok())
      f.refuse(key, pattern.status().message());
    else if (patterns_.size() == kMostPatterns)
      f.refuse(key, format("has over {} regular expressions", kMostPatterns));
    else
      patterns_.emplace_back(*std::move(pattern), entry);
    return f.status();
  }
  static constexpr std::size_t kMostPatterns = 32;

  std::map<std::string, Entry, std::less<>> names_;
  std::vector<std::pair<NamePattern, Entry>> patterns_;
};

// An empty set means every block.
std::set<std::int64_t> read_layers(Fields& f) {
  constexpr const char* kKey = "layers_to_transform";
  std::set<std::int64_t> out;
  if (!f.has(kKey) || f.is_null(kKey)) return out;
  const Json& value = f.value(kKey);
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& layer : list) {
    if (!layer.is_number_integer()) {
      f.fail(kKey, "is neither a number nor a list of numbers");
      return out;
    }
    out.insert(layer.get<std::int64_t>());
  }
  return out;
}

void refuse_other_kinds(const Json& config, Fields& f) {
  constexpr std::string_view kNotSupported =
      "is set, which is not supported; merge the adapter with PEFT first";
  if (f.text("peft_type", "") != "LORA")
    f.refuse("peft_type", "is not \"LORA\", the only kind of adapter that is read");
  for (const char* key :
       {"alora_invocation_tokens", "layer_replication", "lora_bias", "target_parameters",
        "trainable_token_indices", "use_bdlora", "use_qalora"}) {
    if (f.has(key) && is_truthy(f.value(key))) f.refuse(key, kNotSupported);
  }
  // Keys of LoRA variants. The keys in `starts` only choose the initial values; they are handled
  // below.
  const std::set<std::string_view> starts = {"corda_config", "eva_config", "loftq_config",
                                             "lora_ga_config"};
  for (const auto& [key, value] : config.items()) {
    if (key.ends_with("_config") && !starts.contains(key) && is_truthy(value))
      f.refuse(key, kNotSupported);
  }
  // Some initialisations change the base's weights, and the adapter fits only the changed weights.
  constexpr std::string_view kKey = "init_lora_weights";
  if (!f.has(kKey.data()) || !f.value(kKey.data()).is_string()) return;
  const std::string start = f.value(kKey.data()).get<std::string>();
  if (start != "gaussian" && start != "eva" && start != "orthogonal")
    f.refuse(kKey, format("\"{}\" changes the weights of the base; let PEFT convert or merge it",
                          shown(start)));
}

// A pattern over its limits is a failure of `key`.
bool covers(Fields& f, const char* key, const ModuleChoice& choice, const Layer& layer) {
  const Result<bool> result = choice.covers(layer);
  if (!result.ok()) f.fail(key, result.status().message());
  return result.ok() && *result;
}
std::optional<double> number_for(Fields& f, const char* key, const NumberPattern& numbers,
                                 std::string_view path) {
  const Result<std::optional<double>> result = numbers.find(path);
  if (!result.ok()) f.fail(key, result.status().message());
  return result.ok() ? *result : std::nullopt;
}

// All layers that the configuration selects, with rank and alpha.
Result<std::map<std::string, LoraModule, std::less<>>> chosen_modules(Fields& f,
                                                                      const AdapterConfig& config,
                                                                      const Architecture& model) {
  constexpr const char *kTargets = "target_modules", *kExcluded = "exclude_modules",
                       *kRanks = "rank_pattern", *kAlphas = "alpha_pattern";
  if (!f.has(kTargets) || f.is_null(kTargets)) f.fail(kTargets, "is missing");
  NEAP_TRY(f.status());
  NEAP_TRY_ASSIGN(const ModuleChoice targets, ModuleChoice::read(f, kTargets));
  std::optional<ModuleChoice> excluded;
  if (f.has(kExcluded) && !f.is_null(kExcluded)) {
    NEAP_TRY_ASSIGN(excluded, ModuleChoice::read(f, kExcluded));
  }
  NEAP_TRY_ASSIGN(const NumberPattern ranks, NumberPattern::read(f, kRanks, true));
  NEAP_TRY_ASSIGN(const NumberPattern alphas, NumberPattern::read(f, kAlphas, false));
  const std::set<std::int64_t> blocks = read_layers(f);
  if (!blocks.empty() && !f.value(kTargets).is_array())
    f.fail("layers_to_transform", "goes only with a list of target_modules");
  NEAP_TRY(f.status());
  std::map<std::string, LoraModule, std::less<>> out;
  std::string known;
  for (const Layer& layer : linear_layers(model)) {
    if (layer.block <= 0) known += (known.empty() ? "" : ", ") + layer.path;
    const bool covered = covers(f, kTargets, targets, layer) &&
                         !(excluded && covers(f, kExcluded, *excluded, layer));
    NEAP_TRY(f.status());
    if (!covered) continue;
    if (config.saves(layer.path) || (!blocks.empty() && !blocks.contains(layer.block))) continue;
    LoraModule module{config.lora.rank, config.lora.alpha};
    if (const auto rank = number_for(f, kRanks, ranks, layer.path))
      module.rank = static_cast<std::int64_t>(*rank);
    if (const auto alpha = number_for(f, kAlphas, alphas, layer.path)) module.alpha = *alpha;
    NEAP_TRY(f.status());
    out.emplace(layer.path, module);
  }
  if (out.empty())
    f.fail(kTargets, format("chooses no linear layer of the model; it has {}", known));
  NEAP_TRY(f.status());
  return out;
}

}  // namespace

Result<AdapterConfig> AdapterConfig::from_json(const Json& config, std::string_view where,
                                               const Architecture& model) {
  if (!config.is_object())
    return Status(ErrorCode::kCorrupt, format("{} is not a JSON object", where));
  Fields f(config, where);
  refuse_other_kinds(config, f);
  AdapterConfig out;
  out.lora.rank = f.integer("r", 8);
  out.lora.alpha = f.number("lora_alpha", 8);
  out.lora.rank_stabilized = f.boolean("use_rslora", false);
  out.magnitudes = f.boolean("use_dora", false);
  out.dropout = f.number("lora_dropout", 0);
  const std::string bias = f.text("bias", "none");
  if (bias != "none" && bias != "all" && bias != "lora_only")
    f.refuse("bias", "is not \"none\", \"all\" or \"lora_only\"");
  out.biases = bias != "none";
  if (constexpr const char* kKey = "modules_to_save"; f.has(kKey) && !f.is_null(kKey)) {
    if (is_list_of_texts(f.value(kKey)))
      out.modules_to_save = f.value(kKey).get<std::vector<std::string>>();
    else
      f.fail(kKey, "is not a list of names");
  }
  NEAP_TRY(f.status());
  NEAP_TRY_ASSIGN(out.lora.modules, chosen_modules(f, out, model));
  return out;
}

Result<AdapterConfig> AdapterConfig::from_folder(const fs::path& folder,
                                                 const Architecture& model) {
  const fs::path file = folder / kAdapterConfig;
  NEAP_TRY_ASSIGN(const Json config, read_adapter_config(file));
  return from_json(config, file.string(), model);
}

bool AdapterConfig::saves(std::string_view path) const {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const std::string& name) { return is_called(path, name); });
}

Status AdapterConfig::check_trainable(std::string_view where, const Architecture& model) const {
  const auto refuse = [&](const std::string& what) {
    return Status(ErrorCode::kUnsupported,
                  format("{}: training cannot continue an adapter {}. `neap merge` adds it to its "
                         "base, from which a new adapter can start",
                         where, what));
  };
  if (magnitudes) return refuse("with \"use_dora\"");
  if (biases) return refuse("that trained biases (\"bias\")");
  for (const std::string& name : modules_to_save) {
    // PEFT adds both names to adapters of classifiers.
    if (name != "score" && name != "classifier")
      return refuse(format("that trained \"{}\" whole (\"modules_to_save\")", name));
  }
  for (const Layer& layer : linear_layers(model)) {
    if (layer.block < 0 && lora.modules.contains(layer.path))
      return refuse(format("of \"{}\", which is in no block", layer.path));
  }
  return {};
}

Json adapter_json(const LoraShape& lora, const Architecture& model, Head head,
                  const std::string& base_model) {
  Json targets = Json::array(), ranks = Json::object(), alphas = Json::object();
  const auto path_of = [&](const Linear& linear, std::int64_t block) {
    return format("{}.{}", block_prefix(model, block), linear.name);
  };
  for (const Linear& linear : block_linears(model)) {
    Json paths = Json::array();
    for (std::int64_t block = 0; block < model.num_hidden_layers; ++block) {
      const std::string path = path_of(linear, block);
      const LoraModule module = lora.of(path);
      if (module.rank == 0) continue;
      paths.push_back(path);
      if (module.rank != lora.rank) ranks[path] = module.rank;
      if (module.alpha != lora.alpha) alphas[path] = module.alpha;
    }
    if (std::ssize(paths) == model.num_hidden_layers) paths = Json::array({linear.name});
    targets.insert(targets.end(), paths.begin(), paths.end());
  }
  Json config = {{"peft_type", "LORA"},
                 {"task_type", head == Head::kScalar ? "SEQ_CLS" : "CAUSAL_LM"},
                 {"base_model_name_or_path", base_model},
                 {"r", lora.rank},
                 {"lora_alpha", lora.alpha},
                 {"lora_dropout", 0.0},
                 {"use_rslora", lora.rank_stabilized},
                 {"rank_pattern", std::move(ranks)},
                 {"alpha_pattern", std::move(alphas)},
                 {"bias", "none"},
                 {"fan_in_fan_out", model.input_major},
                 {"inference_mode", true},
                 {"target_modules", std::move(targets)}};
  if (head == Head::kScalar) config["modules_to_save"] = Json::array({"score"});
  return config;
}

}  // namespace neap::spec

#include "model/checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "model/checkpoint_detail.h"
#include "model/safetensors.h"

namespace neap::model {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

constexpr std::int64_t kBufferBytes = std::int64_t{64} << 20;

struct DtypeName {
  at::ScalarType type;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{at::kFloat, "F32"},  {at::kBFloat16, "BF16"}, {at::kHalf, "F16"},
                                 {at::kDouble, "F64"}, {at::kLong, "I64"},      {at::kInt, "I32"},
                                 {at::kShort, "I16"},  {at::kChar, "I8"},       {at::kByte, "U8"},
                                 {at::kBool, "BOOL"}};

const char* name_of(at::ScalarType type) {
  for (const auto& d : kDtypes)
    if (d.type == type) return d.name;
  throw Error(ErrorCode::kUnsupported,
              format("Tensors of {} cannot be saved", c10::toString(type)));
}
at::ScalarType type_of(std::string_view name, const std::string& where) {
  for (const auto& d : kDtypes)
    if (name == d.name) return d.type;
  throw Error(ErrorCode::kUnsupported,
              format("{} has the dtype {}, which is not read", where, name));
}
// What config.json calls it.
const char* torch_name_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return "float64";
  }
}

std::span<std::byte> bytes_of(const Tensor& host) {
  return {static_cast<std::byte*>(host.data_ptr()), host.nbytes()};
}

std::string comma_separated(at::IntArrayRef shape) {
  std::string text;
  for (const auto d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

// A source that copies `tensor` to the host a buffer at a time, as `type`.
TensorSource source_of(std::string name, const Tensor& tensor, at::ScalarType type) {
  const Tensor detached = tensor.detach();
  return {std::move(name), name_of(type), tensor.sizes().vec(),
          [detached, type](const TensorSource::Sink& sink) {
            const at::NoGradGuard no_grad;
            const Tensor flat = detached.contiguous().view(-1);
            const std::int64_t step =
                kBufferBytes / static_cast<std::int64_t>(c10::elementSize(type));
            for (std::int64_t first = 0; first < flat.numel(); first += step) {
              const Tensor piece = flat.narrow(0, first, std::min(step, flat.numel() - first))
                                       .to(at::kCPU, type)
                                       .contiguous();
              sink(bytes_of(piece));
            }
          }};
}

Tensor view_of(const Tensor& flat, const spec::Parameter& p) {
  return flat.narrow(0, p.offset, p.elements()).view(p.shape);
}

void check_units(const std::vector<spec::FlatUnit>& units, const std::vector<Tensor>& flat) {
  if (flat.size() != units.size())
    throw Error(ErrorCode::kInvalidArgument,
                format("The model has {} flat units; {} were given", units.size(), flat.size()));
  for (std::size_t u = 0; u < units.size(); ++u) check_flat(flat[u], units[u], "weights");
}

// The names under which a file may hold a parameter: checkpoints of a base model lack its prefix.
std::vector<std::string> aliases(const std::string& name) {
  std::vector<std::string> all{name};
  for (const std::string prefix : {"model.", "transformer."}) {
    if (name.rfind(prefix, 0) == 0) all.push_back(name.substr(prefix.size()));
  }
  return all;
}

// Buffers that old files hold beside their parameters, and copies of a tied matrix.
bool is_expected_extra(const std::string& name, const spec::Architecture& shape) {
  const auto ends = [&](std::string_view end) {
    return name.size() >= end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  if (ends(".attn.bias") || ends(".attn.masked_bias") || ends("rotary_emb.inv_freq")) return true;
  return shape.tie_word_embeddings && name == "lm_head.weight";
}

Json config_of(const spec::Architecture& shape, spec::Head head, at::ScalarType type) {
  Json config = shape.to_json(head);
  config["torch_dtype"] = torch_name_of(type);
  return config;
}

// Whether there was such a file.
bool copy_file(const fs::path& from, const fs::path& to, const char* name) {
  std::error_code ignored;
  if (from.empty() || !fs::exists(from / name, ignored)) return false;
  if (!fs::equivalent(from / name, to / name, ignored))
    throw_if_error(write_file_atomic(to / name, value_or_throw(read_file(from / name, 1_GiB))));
  return true;
}

void write_generation_config(const fs::path& folder, const spec::Architecture& shape) {
  const Json config = shape.to_json();
  Json generation = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) generation[key] = config[key];
  }
  throw_if_error(write_file_atomic(folder / "generation_config.json", generation.dump(2) + "\n"));
}

void make_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), failure.message()));
}

using detail::read_into;

}  // namespace

void detail::read_into(const SafetensorsFile& file, const TensorEntry& entry,
                       const Tensor& target) {
  const std::string where = format("{}: tensor \"{}\"", file.path().string(), entry.name);
  if (target.sizes() != at::IntArrayRef(entry.shape)) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has shape [{}], the model's is [{}]", where,
                       comma_separated(entry.shape), comma_separated(target.sizes())));
  }
  const at::ScalarType type = type_of(entry.dtype, where);
  if (at::isFloatingType(type) != at::isFloatingType(target.scalar_type()))
    throw Error(ErrorCode::kInvalidArgument, format("{} is {}, where {} is wanted", where,
                                                    entry.dtype, name_of(target.scalar_type())));
  const auto width = static_cast<std::int64_t>(c10::elementSize(type));
  Tensor flat = target.view(-1);
  const std::int64_t step = kBufferBytes / width;
  for (std::int64_t first = 0; first < flat.numel(); first += step) {
    const Tensor buffer =
        at::empty({std::min(step, flat.numel() - first)}, at::TensorOptions().dtype(type));
    file.read(entry, static_cast<std::uint64_t>(first * width), bytes_of(buffer));
    flat.narrow(0, first, buffer.numel()).copy_(buffer);
  }
}

bool has_weights(const fs::path& folder) {
  return WeightFolder::exists(folder);
}

LoadReport load_model(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                      const std::vector<Tensor>& flat) {
  const at::NoGradGuard no_grad;
  const auto units = spec::flat_layout(shape, head);
  check_units(units, flat);
  const WeightFolder weights = WeightFolder::open(folder);
  LoadReport report;
  std::set<std::string> used;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& parameter : units[u].parameters) {
      WeightFolder::Found found;
      for (const std::string& name : aliases(parameter.name)) {
        if ((found = weights.find(name))) break;
      }
      if (found) {
        used.insert(found.tensor->name);
        read_into(*found.file, *found.tensor, view_of(flat[u], parameter));
      } else if (parameter.name == "score.weight") {
        report.missing.push_back(parameter.name);
      } else {
        throw Error(ErrorCode::kNotFound,
                    format("{} has no tensor \"{}\"", folder.string(), parameter.name));
      }
    }
  }
  for (const std::string& name : weights.names()) {
    if (used.count(name) == 0 && !is_expected_extra(name, shape)) report.unused.push_back(name);
  }
  return report;
}

void save_model(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                const std::vector<Tensor>& flat, const SaveOptions& options) {
  const auto units = spec::flat_layout(shape, head);
  check_units(units, flat);
  make_folder(folder);
  const at::ScalarType type = options.dtype.value_or(flat.at(0).scalar_type());
  std::vector<TensorSource> sources;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& parameter : units[u].parameters)
      sources.push_back(source_of(parameter.name, view_of(flat[u], parameter), type));
  }
  write_sharded(folder, std::move(sources), options.max_shard);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "vocab.json", "merges.txt", "chat_template.jinja"})
    (void)copy_file(options.companions, folder, name);
  if (head == spec::Head::kLanguageModel &&
      !copy_file(options.origin, folder, "generation_config.json"))
    write_generation_config(folder, shape);
  throw_if_error(
      write_file_atomic(folder / "config.json", config_of(shape, head, type).dump(2) + "\n"));
}

void save_adapter(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                  const spec::LoraShape& lora, double alpha, const std::vector<Tensor>& flat,
                  const std::string& base_model) {
  const auto units = spec::lora_layout(shape, head, lora);
  check_units(units, flat);
  make_folder(folder);
  std::vector<TensorSource> sources;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& parameter : units[u].parameters) {
      sources.push_back(
          source_of(parameter.name, view_of(flat[u], parameter), flat[u].scalar_type()));
    }
  }
  write_safetensors(folder / "adapter_model.safetensors", std::move(sources));
  Json targets = Json::array();
  for (const auto& linear : spec::block_linears(shape)) {
    if (lora.covers(linear)) targets.push_back(linear.name);
  }
  Json config = {{"peft_type", "LORA"},
                 {"task_type", head == spec::Head::kScalar ? "SEQ_CLS" : "CAUSAL_LM"},
                 {"base_model_name_or_path", base_model},
                 {"r", lora.rank},
                 {"lora_alpha", alpha},
                 {"lora_dropout", 0.0},
                 {"bias", "none"},
                 {"fan_in_fan_out", shape.input_major},
                 {"inference_mode", true},
                 {"target_modules", std::move(targets)}};
  if (head == spec::Head::kScalar) config["modules_to_save"] = Json::array({"score"});
  throw_if_error(write_file_atomic(folder / "adapter_config.json", config.dump(2) + "\n"));
}

void load_adapter(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                  const spec::LoraShape& lora, const std::vector<Tensor>& flat) {
  const at::NoGradGuard no_grad;
  const auto units = spec::lora_layout(shape, head, lora);
  check_units(units, flat);
  const SafetensorsFile file = SafetensorsFile::open(folder / "adapter_model.safetensors");
  std::set<std::string> used;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& parameter : units[u].parameters) {
      const TensorEntry* entry = file.find(parameter.name);
      if (entry == nullptr)
        throw Error(ErrorCode::kNotFound,
                    format("{} has no tensor \"{}\"", file.path().string(), parameter.name));
      read_into(file, *entry, view_of(flat[u], parameter));
      used.insert(parameter.name);
    }
  }
  for (const TensorEntry& entry : file.tensors()) {
    if (used.count(entry.name) == 0)
      throw Error(ErrorCode::kInvalidArgument,
                  format("{} has the tensor \"{}\", which these adapters have no place for",
                         file.path().string(), entry.name));
  }
}

void save_tensors(const fs::path& file, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata, const BeforeTensor& before) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    TensorSource source = source_of(name, tensor, tensor.scalar_type());
    if (before) {
      source.produce = [before, i = sources.size(),
                        produce = std::move(source.produce)](const TensorSource::Sink& sink) {
        before(i);
        produce(sink);
      };
    }
    sources.push_back(std::move(source));
  }
  write_safetensors(file, std::move(sources), metadata);
}

std::map<std::string, std::string> load_tensors(const fs::path& path, const NamedTensors& tensors,
                                                const BeforeTensor& before) {
  const at::NoGradGuard no_grad;
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    if (before) before(i);
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr)
      throw Error(ErrorCode::kNotFound, format("{} has no tensor \"{}\"", path.string(), name));
    if (entry->dtype != name_of(tensor.scalar_type()))
      throw Error(ErrorCode::kInvalidArgument,
                  format("{}: tensor \"{}\" is {}, where {} is wanted", path.string(), name,
                         entry->dtype, name_of(tensor.scalar_type())));
    if (!tensor.is_contiguous())
      throw Error(ErrorCode::kInvalidArgument,
                  format("The tensor for \"{}\" is not contiguous", name));
    read_into(file, *entry, tensor);
  }
  return file.metadata();
}

}  // namespace neap::model

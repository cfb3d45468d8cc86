#include "model/checkpoint.h"

#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "model/tensor_io.h"
#include "model/tokenizer_files.h"

namespace neap::model {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

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

void check_units(const std::vector<spec::FlatUnit>& units, const std::vector<Tensor>& flat) {
  if (flat.size() != units.size())
    throw Error(ErrorCode::kInvalidArgument,
                format("The model has {} flat units; {} were given", units.size(), flat.size()));
  for (std::size_t u = 0; u < units.size(); ++u) check_flat(flat[u], units[u], "weights");
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

// A model's or adapter's parameters by name.
NamedTensors named_parameters(const std::vector<spec::FlatUnit>& units,
                              const std::vector<Tensor>& flat) {
  check_units(units, flat);
  NamedTensors out;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& parameter : units[u].parameters)
      out.emplace_back(parameter.name, parameter_view(flat[u], parameter));
  }
  return out;
}

void write_weights(const fs::path& folder, const NamedTensors& tensors, at::ScalarType type,
                   const SaveOptions& options) {
  std::vector<TensorInfo> infos;
  std::vector<TensorWrite> writes;
  for (const auto& [name, tensor] : tensors) {
    writes.push_back({infos.size(), tensor, type});
    infos.push_back({name, dtype_name(type), tensor.sizes().vec()});
  }
  ShardedWriter files(folder, infos, options.max_shard, options.sync);
  write_tensors(writes,
                [&](std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes) {
                  files.write(tensor, offset, bytes);
                });
  files.commit();
}

}  // namespace

void save_model(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                const std::vector<Tensor>& flat, const SaveOptions& options) {
  const NamedTensors parameters = named_parameters(spec::flat_layout(shape, head), flat);
  make_folder(folder);
  const at::ScalarType type = options.dtype.value_or(flat.at(0).scalar_type());
  write_weights(folder, parameters, type, options);
  for (const char* name : kTokenizerFiles) (void)copy_file(options.companions, folder, name);
  if (head == spec::Head::kLanguageModel &&
      !copy_file(options.origin, folder, "generation_config.json"))
    write_generation_config(folder, shape);
  throw_if_error(
      write_file_atomic(folder / "config.json", config_of(shape, head, type).dump(2) + "\n"));
}

void save_adapter(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                  const spec::LoraShape& lora, double alpha, const std::vector<Tensor>& flat,
                  const std::string& base_model, Sync sync) {
  const NamedTensors parameters = named_parameters(spec::lora_layout(shape, head, lora), flat);
  make_folder(folder);
  save_tensors(folder / "adapter_model.safetensors", parameters, {{"format", "pt"}}, sync);
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
  const NamedTensors parameters = named_parameters(spec::lora_layout(shape, head, lora), flat);
  const SafetensorsFile file = SafetensorsFile::open(folder / "adapter_model.safetensors");
  std::set<std::string> used;
  std::vector<TensorRead> reads;
  for (const auto& [name, tensor] : parameters) {
    reads.push_back({&file, &entry_of(file, name), tensor});
    used.insert(name);
  }
  for (const TensorEntry& entry : file.tensors()) {
    if (!used.contains(entry.name))
      throw Error(ErrorCode::kInvalidArgument,
                  format("{} has the tensor \"{}\", which these adapters have no place for",
                         file.path().string(), entry.name));
  }
  read_tensors(reads);
}

}  // namespace neap::model

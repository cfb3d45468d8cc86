#include "model/checkpoint.h"

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "model/tensor_io.h"
#include "model/tokenizer_files.h"
#include "spec/adapter_config.h"

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

// Writes the weights; units are asked for `at_once` at a time.
void write_weights(const fs::path& folder, const std::vector<spec::FlatUnit>& units,
                   const UnitSource& weights, std::size_t at_once, at::ScalarType type,
                   const SaveOptions& options) {
  std::vector<TensorInfo> infos;
  for (const spec::FlatUnit& unit : units) {
    for (const spec::Parameter& p : unit.parameters)
      infos.push_back({p.name, dtype_name(type), p.shape});
  }
  ShardedWriter files(folder, infos, options.max_shard, options.sync);
  std::size_t number = 0;
  for (std::size_t u = 0; u < units.size();) {
    std::vector<TensorWrite> writes;
    for (const std::size_t end = std::min(units.size(), u + at_once); u < end; ++u) {
      const Tensor flat = weights(u);
      check_flat(flat, units[u], "weights");
      for (const spec::Parameter& p : units[u].parameters)
        writes.push_back({number++, parameter_view(flat, p), type});
    }
    write_tensors(writes,
                  [&](std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes) {
                    files.write(tensor, offset, bytes);
                  });
  }
  files.commit();
}

// What a model's folder has besides the weights; config.json last.
void write_rest(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                at::ScalarType type, const SaveOptions& options) {
  copy_companions(folder, options);
  if (head == spec::Head::kLanguageModel &&
      !copy_file(options.origin, folder, "generation_config.json"))
    write_generation_config(folder, shape);
  throw_if_error(
      write_file_atomic(folder / "config.json", config_of(shape, head, type).dump(2) + "\n"));
}

}  // namespace

void copy_companions(const fs::path& folder, const SaveOptions& options) {
  for (const char* name : kTokenizerFiles) (void)copy_file(options.companions, folder, name);
}

void save_model(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                const std::vector<Tensor>& flat, const SaveOptions& options) {
  const std::vector<spec::FlatUnit> units = spec::flat_layout(shape, head);
  check_units(units, flat);
  make_folder(folder);
  const at::ScalarType type = options.dtype.value_or(flat.at(0).scalar_type());
  write_weights(
      folder, units, [&](std::size_t u) { return flat[u]; }, units.size(), type, options);
  write_rest(folder, shape, head, type, options);
}

void save_model(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                const UnitSource& weights, const SaveOptions& options) {
  make_folder(folder);
  write_weights(folder, spec::flat_layout(shape, head), weights, 1, options.dtype.value(), options);
  write_rest(folder, shape, head, *options.dtype, options);
}

void save_adapter(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                  const spec::LoraShape& lora, const std::vector<Tensor>& flat,
                  const std::string& base_model, Sync sync) {
  const NamedTensors parameters = named_parameters(spec::lora_layout(shape, head, lora), flat);
  make_folder(folder);
  save_tensors(folder / spec::kAdapterWeights, parameters, {{"format", "pt"}}, sync);
  const Json config = spec::adapter_json(lora, shape, head, base_model);
  throw_if_error(write_file_atomic(folder / spec::kAdapterConfig, config.dump(2) + "\n"));
}

AdapterReader::AdapterReader(const fs::path& folder, const spec::Architecture& shape,
                             spec::Head head, const spec::LoraShape& lora)
    : units_(spec::lora_layout(shape, head, lora)),
      file_(SafetensorsFile::open(folder / spec::kAdapterWeights)) {
  std::set<std::string, std::less<>> used;
  for (const spec::FlatUnit& unit : units_) {
    for (const spec::Parameter& p : unit.parameters) {
      check_tensor(file_, entry_of(file_, p.name), p.shape, at::kFloat);
      used.insert(p.name);
    }
  }
  for (const TensorEntry& entry : file_.tensors()) {
    if (!used.contains(entry.name))
      throw Error(ErrorCode::kInvalidArgument,
                  format("{} has the tensor \"{}\", which these adapters have no place for",
                         file_.path().string(), entry.name));
  }
}

void AdapterReader::read(std::size_t first, const std::vector<Tensor>& flat) const {
  std::vector<TensorRead> reads;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const spec::FlatUnit& unit = units_.at(first + i);
    check_flat(flat[i], unit, "adapters");
    for (const spec::Parameter& p : unit.parameters)
      reads.push_back({&file_, &entry_of(file_, p.name), parameter_view(flat[i], p)});
  }
  read_tensors(reads);
}

}  // namespace neap::model

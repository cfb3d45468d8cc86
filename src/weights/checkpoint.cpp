#include "weights/checkpoint.h"

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "spec/model/adapter_config.h"
#include "text/tokenizer/tokenizer_files.h"
#include "weights/tensor_io.h"
#include "weights/tensor_pieces.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

// The dtype's name in config.json.
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

Json config_of(const spec::Architecture& shape, spec::Head head, at::ScalarType type) {
  Json config = shape.to_json(head);
  config["torch_dtype"] = torch_name_of(type);
  return config;
}

// Copies a file. False if it does not exist.
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
  throw_if_error(
      write_file_atomic(folder / "generation_config.json", json_text(generation, 2) + "\n"));
}

void make_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), failure.message()));
}

}  // namespace

// Writes config.json last.
void save_model_rest(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                     at::ScalarType dtype, const SaveOptions& options) {
  copy_companions(folder, options);
  if (head == spec::Head::kLanguageModel &&
      !copy_file(options.origin, folder, "generation_config.json"))
    write_generation_config(folder, shape);
  throw_if_error(write_file_atomic(folder / "config.json",
                                   json_text(config_of(shape, head, dtype), 2) + "\n"));
}

std::vector<TensorInfo> tensors_of(const std::vector<spec::FlatUnit>& units, at::ScalarType dtype) {
  std::vector<TensorInfo> out;
  for (const spec::FlatUnit& unit : units)
    for (const spec::Parameter& p : unit.parameters)
      out.push_back({p.name, dtype_name(dtype), p.shape});
  return out;
}

void copy_companions(const fs::path& folder, const SaveOptions& options) {
  for (const char* name : text::kTokenizerFiles) (void)copy_file(options.companions, folder, name);
}

void save_model(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                const UnitSource& weights, const SaveOptions& options) {
  make_folder(folder);
  const at::ScalarType type = options.dtype.value();
  const std::vector<spec::FlatUnit> units = spec::flat_layout(shape, head);
  ShardedWriter files(folder, tensors_of(units, type), options.max_shard, options.sync);
  std::size_t number = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Tensor flat = weights(u);
    ops::check_flat(flat, units[u], "weights");
    std::vector<TensorWrite> writes;
    for (const spec::Parameter& p : units[u].parameters)
      writes.push_back({number++, ops::parameter_view(flat, p), type});
    write_tensors(writes, all_threads(),
                  [&](std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes) {
                    files.write(tensor, offset, bytes);
                  });
  }
  files.commit();
  save_model_rest(folder, shape, head, type, options);
}

TensorFiles adapter_file(const fs::path& folder, const std::vector<spec::FlatUnit>& units,
                         at::ScalarType dtype) {
  TensorFiles out = one_file(folder / spec::kAdapterWeights, tensors_of(units, dtype));
  for (TensorInfo& tensor : out.files.front().tensors) tensor.weights = true;
  return out;
}

void save_adapter_config(const fs::path& folder, const spec::Architecture& shape, spec::Head head,
                         const spec::LoraShape& lora, const std::string& base_model) {
  const Json config = spec::adapter_json(lora, shape, head, base_model);
  throw_if_error(write_file_atomic(folder / spec::kAdapterConfig, json_text(config, 2) + "\n"));
}

AdapterReader::AdapterReader(const fs::path& folder, const spec::Architecture& shape,
                             spec::Head head, const spec::LoraShape& lora,
                             const OpenFolders& folders)
    : units_(spec::lora_layout(shape, head, lora)), file_(folders.adapter(folder)) {
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
    ops::check_flat(flat[i], unit, "adapters");
    for (const spec::Parameter& p : unit.parameters)
      reads.push_back({&file_, &entry_of(file_, p.name), ops::parameter_view(flat[i], p)});
  }
  read_tensors(reads);
}

}  // namespace neap::weights

// A model's weights as a folder: one file, or shards and their index.
#include <algorithm>
#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/status.h"
#include "spec/types/model_files.h"
#include "weights/safetensors.h"
#include "weights/safetensors_detail.h"

namespace neap::weights {

namespace fs = std::filesystem;
using detail::bytes_of;
using detail::corrupt;
using detail::shown;
using spec::kModelWeightIndex;
using spec::kModelWeights;

namespace {

bool is_shard_name(const std::string& name) {
  // model-00001-of-00003.safetensors
  return name.size() == 32 && name.rfind("model-", 0) == 0 && name.compare(11, 4, "-of-") == 0 &&
         name.compare(20, 12, ".safetensors") == 0;
}

void remove_stale(const fs::path& folder, const std::vector<std::string>& kept) {
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == kModelWeights || name == kModelWeightIndex || is_shard_name(name);
    if (ours && std::find(kept.begin(), kept.end(), name) == kept.end())
      stale.push_back(entry.path());
  }
  std::error_code ignored;  // a leftover only takes space
  for (const fs::path& path : stale) fs::remove(path, ignored);
}

}  // namespace

TensorFiles one_file(fs::path path, std::vector<TensorInfo> tensors) {
  TensorFiles out;
  for (std::size_t i = 0; i < tensors.size(); ++i) out.places.push_back({0, i});
  out.files.push_back({std::move(path), std::move(tensors)});
  return out;
}

TensorFiles model_files(const fs::path& folder, const std::vector<TensorInfo>& tensors,
                        Bytes max_shard) {
  TensorFiles out;
  out.files.resize(1);
  std::uint64_t in_shard = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::uint64_t bytes = bytes_of(tensor);
    if (in_shard > 0 && in_shard + bytes > max_shard.count()) {
      out.files.emplace_back();
      in_shard = 0;
    }
    in_shard += bytes;
    std::vector<TensorInfo>& shard = out.files.back().tensors;
    out.places.push_back({out.files.size() - 1, shard.size()});
    shard.push_back(tensor);
    shard.back().weights = true;
  }
  const std::size_t count = out.files.size();
  for (std::size_t i = 0; i < count; ++i)
    out.files[i].path =
        folder / (count == 1 ? std::string(kModelWeights)
                             : format("model-{:05}-of-{:05}.safetensors", i + 1, count));
  return out;
}

void finish_model_files(const TensorFiles& files) {
  const fs::path folder = files.files.front().path.parent_path();
  std::vector<std::string> kept;
  for (const TensorFiles::File& file : files.files) kept.push_back(file.path.filename());
  if (kept.size() > 1) {
    Json map = Json::object();
    std::uint64_t total = 0;
    for (const TensorFiles::Place& place : files.places) {
      const TensorInfo& tensor = files.files[place.file].tensors[place.tensor];
      map.emplace(tensor.name, kept[place.file]);
      total += bytes_of(tensor);
    }
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
    throw_if_error(write_file_atomic(folder / kModelWeightIndex, json_text(index, 2) + "\n"));
    kept.emplace_back(kModelWeightIndex);
  }
  remove_stale(folder, kept);
}

ShardedWriter::ShardedWriter(const fs::path& folder, const std::vector<TensorInfo>& tensors,
                             Bytes max_shard, Sync sync)
    : files_(model_files(folder, tensors, max_shard)) {
  for (const TensorFiles::File& file : files_.files)
    shards_.emplace_back(file.path, file.tensors,
                         std::map<std::string, std::string>{{"format", "pt"}}, sync);
}

void ShardedWriter::write(std::size_t tensor, std::uint64_t offset,
                          std::span<const std::byte> bytes) {
  const TensorFiles::Place place = files_.places.at(tensor);
  shards_[place.file].write(place.tensor, offset, bytes);
}

void ShardedWriter::commit() {
  for (SafetensorsWriter& shard : shards_) shard.commit();
  finish_model_files(files_);
}

WeightFolder WeightFolder::open(const fs::path& folder, const OpenFile& open_file) {
  WeightFolder weights;
  weights.folder_ = folder;
  std::error_code ignored;
  if (fs::exists(folder / kModelWeights, ignored)) {
    weights.files_.push_back(open_file(folder / kModelWeights));
    for (const TensorEntry& t : weights.files_[0].tensors()) weights.file_of_.emplace(t.name, 0);
    return weights;
  }
  const fs::path index_path = folder / kModelWeightIndex;
  if (!fs::exists(index_path, ignored)) {
    const bool pickled = fs::exists(folder / "pytorch_model.bin", ignored) ||
                         fs::exists(folder / "pytorch_model.bin.index.json", ignored);
    throw Error(
        ErrorCode::kNotFound,
        format("{} has no {} and no {}{}", folder.string(), kModelWeights, kModelWeightIndex,
               pickled ? "; it holds pytorch_model.bin, a pickle, which is not read: "
                         "docs/models.md has the command that converts it"
                       : ""));
  }
  const std::string text = value_or_throw(read_file(index_path, read_limits::kWeightIndex));
  throw_if_error(check_json(text, index_path.string(), read_limits::kWeightIndex));
  // Uses sorted objects: neap::Json searches keys linearly, and a hostile index could exploit that.
  const auto index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded()) corrupt(index_path, "not valid JSON");
  const auto map = index.find("weight_map");
  if (!index.is_object() || map == index.end() || !map->is_object())
    corrupt(index_path, "has no object \"weight_map\"");
  std::map<std::string, std::size_t> opened;
  for (const auto& [name, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
      corrupt(index_path, format("\"{}\" is in {}, which is not a file name", shown(name),
                                 shown(json_text(value))));
    const auto [it, fresh] = opened.emplace(file, weights.files_.size());
    if (fresh) weights.files_.push_back(open_file(folder / file));
    if (weights.files_[it->second].find(name) == nullptr)
      corrupt(index_path, format("says \"{}\" is in {}, which lacks it", shown(name), file));
    weights.file_of_.emplace(name, it->second);
  }
  return weights;
}

WeightFolder::Found WeightFolder::find(std::string_view name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) return {};
  return {&files_[it->second], files_[it->second].find(name)};
}

std::optional<fs::path> WeightFolder::index() const {
  if (!files_.empty() && files_.front().path() == folder_ / kModelWeights) return std::nullopt;
  return folder_ / kModelWeightIndex;
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : file_of_) all.push_back(name);
  return all;
}

}  // namespace neap::weights

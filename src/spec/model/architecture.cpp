#include "spec/model/architecture.h"

#include <algorithm>
#include <functional>

#include "base/file.h"
#include "base/format.h"
#include "spec/model/config_groups.h"

namespace neap::spec {
namespace {

std::string known_types() {
  std::string list;
  for (const ArchitectureFile* file : architecture_files())
    list += (list.empty() ? "" : ", ") + std::string(file->model_type);
  return list;
}

// Checks that involve several features and apply to every model type.
Status check(const Architecture& a, std::string_view where) {
  if (a.num_attention_heads % a.num_key_value_heads != 0) {
    return {ErrorCode::kInvalidArgument,
            format("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", where,
                   a.num_attention_heads, a.num_key_value_heads)};
  }
  if (a.query_width() > kMaxWidth * 16) {
    return {ErrorCode::kInvalidArgument,
            format("{}: {} heads of {} are too wide", where, a.num_attention_heads, a.head_dim)};
  }
  if (a.norm_eps < 0)
    return {ErrorCode::kInvalidArgument,
            format("{}: the norms' epsilon is {}; it cannot be negative", where, a.norm_eps)};
  return {};
}

// generation_config.json, if the folder has one, overrides the ids that stop generation.
Status read_generation_config(const std::filesystem::path& file, Architecture& a) {
  std::error_code none;
  if (!std::filesystem::exists(file, none)) return {};
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, read_limits::kModelJson));
  NEAP_TRY_ASSIGN(const Json json, parse_json(text, file.string()));
  if (!json.is_object())
    return {ErrorCode::kInvalidArgument, format("{}: not a JSON object", file.string())};
  Fields f(json, file.string());
  architectures::read_given_tokens(f, a);
  return f.status();
}

Json id_or_null(std::int64_t id) {
  return id >= 0 ? Json(id) : Json(nullptr);
}

}  // namespace

std::int64_t Architecture::window_of(std::int64_t layer) const {
  const auto i = static_cast<std::size_t>(layer);
  return i < sliding_layers.size() && sliding_layers[i] ? sliding_window : 0;
}

bool Architecture::rotates(std::int64_t layer) const {
  const auto i = static_cast<std::size_t>(layer);
  return rotary.dimensions > 0 && !(i < unrotated_layers.size() && unrotated_layers[i]);
}

bool Architecture::layers_alike() const {
  const auto alike = [](const std::vector<bool>& layers) {
    return std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) == layers.end();
  };
  return alike(sliding_layers) && alike(unrotated_layers);
}

std::int64_t Architecture::longest_sequence() const {
  // With these kinds of scaling, max_position_embeddings may still be the value before scaling.
  if (rotary.scaling != Rotary::Scaling::kDynamic && rotary.scaling != Rotary::Scaling::kYarn)
    return max_position_embeddings;
  const double stretched = static_cast<double>(rotary.original_max_positions) * rotary.factor;
  return static_cast<std::int64_t>(std::clamp(
      stretched, static_cast<double>(max_position_embeddings), static_cast<double>(kMaxPositions)));
}

std::int64_t Architecture::blocks() const {
  if (pipeline.stages == 1) return num_hidden_layers;
  std::int64_t sum = 0;
  for (const BlockRange& range : pipeline.ranges) sum += range.count;
  return sum;
}

std::int64_t Architecture::block_at(std::int64_t i) const {
  for (const BlockRange& range : pipeline.ranges) {
    if (i < range.count) return range.first + i;
    i -= range.count;
  }
  return i;
}

std::int64_t Architecture::place_of_block(std::int64_t block) const {
  std::int64_t before = 0;
  for (const BlockRange& range : pipeline.ranges) {
    if (block >= range.first && block < range.first + range.count)
      return before + block - range.first;
    before += range.count;
  }
  return pipeline.stages == 1 ? block : -1;
}

BlockChunk Architecture::chunk(std::int64_t number) const {
  if (pipeline.stages == 1) return {{0, num_hidden_layers}, true, true};
  const auto n = static_cast<std::size_t>(number);
  BlockChunk out{{0, pipeline.ranges.at(n).count},
                 embeds() && number == 0,
                 has_head() && number + 1 == pipeline.chunks};
  for (std::size_t c = 0; c < n; ++c) out.blocks.first += pipeline.ranges[c].count;
  return out;
}

Result<Architecture> Architecture::from_json(const Json& config, std::string_view where) {
  if (!config.is_object())
    return Status(ErrorCode::kInvalidArgument, format("{}: not a JSON object", where));
  Fields f(config, where);
  Architecture a;
  if (!f.has("model_type")) f.fail("model_type", "is missing");
  a.model_type = f.text("model_type", "");
  NEAP_TRY(f.status());
  const ArchitectureFile* file = find_architecture_file(a.model_type);
  if (file == nullptr)
    f.refuse("model_type", format("is \"{}\"; supported are {}", a.model_type, known_types()));
  if (f.has("quantization_config") && !f.is_null("quantization_config"))
    f.refuse("quantization_config", "is there: quantized weights are not supported");
  NEAP_TRY(f.status());
  file->read(f, a);
  NEAP_TRY(f.status());
  if (a.embedding_dim == 0) a.embedding_dim = a.hidden_size;
  NEAP_TRY(check(a, where));
  a.config = config;
  return a;
}

Result<Architecture> Architecture::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    const std::filesystem::path above = folder.parent_path().filename();
    if (above == "latest" || above == "best" || above.string().starts_with("global_step_"))
      return Status(ErrorCode::kNotFound,
                    format("There is no folder {}. Train first: a run writes its checkpoints there",
                           folder.string()));
    const std::filesystem::path repository = above / folder.filename();
    return Status(
        ErrorCode::kNotFound,
        format("There is no folder {}. A model is a local folder with config.json, weights "
               "and tokenizer.json; `hf download {} --local-dir {}` fetches one of Hugging "
               "Face by its repository's name",
               folder.string(), repository.string(), folder.string()));
  }
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, read_limits::kModelJson));
  NEAP_TRY_ASSIGN(const Json config, parse_json(text, file.string()));
  NEAP_TRY_ASSIGN(Architecture a, from_json(config, file.string()));
  NEAP_TRY(read_generation_config(folder / "generation_config.json", a));
  return a;
}

Json Architecture::to_json(Head head) const {
  Json j = config.is_object() ? config : Json::object();
  const bool scalar = head == Head::kScalar;
  if (const ArchitectureFile* file = find_architecture_file(model_type))
    j["architectures"] =
        Json::array({std::string(scalar ? file->scalar_class : file->language_model_class)});
  j["model_type"] = model_type;
  j["tie_word_embeddings"] = tie_word_embeddings;
  j["bos_token_id"] = id_or_null(bos_token_id);
  j["pad_token_id"] = id_or_null(pad_token_id);
  if (eos_token_ids.size() > 1)
    j["eos_token_id"] = eos_token_ids;
  else
    j["eos_token_id"] = id_or_null(eos_token_ids.empty() ? -1 : eos_token_ids.front());
  // These keys describe the tensors' type in one file, or labels of another head, and not the
  // model.
  for (const char* key :
       {"dtype", "torch_dtype", "num_labels", "id2label", "label2id", "problem_type"})
    j.erase(key);
  if (scalar) {
    // Hugging Face derives the number of labels from this map.
    j["id2label"] = {{"0", "LABEL_0"}};
    j["label2id"] = {{"LABEL_0", 0}};
  }
  return j;
}

}  // namespace neap::spec

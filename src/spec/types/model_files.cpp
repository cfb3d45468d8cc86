#include "spec/types/model_files.h"

#include <string>

#include "base/file.h"
#include "base/format.h"
#include "base/text.h"

namespace neap::spec {

namespace fs = std::filesystem;

Result<Json> read_adapter_config(const fs::path& file) {
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, read_limits::kModelJson));
  NEAP_TRY_ASSIGN(Json config, parse_json(text, file.string()));
  if (!config.is_object())
    return Status(ErrorCode::kCorrupt, format("{} is not a JSON object", file.string()));
  return config;
}

bool has_weights(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kModelWeights, ignored) ||
         fs::exists(folder / kModelWeightIndex, ignored);
}

fs::path ModelFiles::tokenizer() const {
  std::error_code ignored;
  return !adapter.empty() && fs::exists(adapter / "tokenizer.json", ignored) ? adapter : base;
}

fs::path find_model_folder(const fs::path& path, std::initializer_list<ModelId> models) {
  const auto holds_model = [](const fs::path& folder) {
    std::error_code ignored;
    return fs::exists(folder / "config.json", ignored) ||
           fs::exists(folder / kAdapterConfig, ignored);
  };
  if (holds_model(path)) return path;
  for (const fs::path& checkpoint : {path, path / "latest"}) {
    for (const ModelId model : models) {
      if (holds_model(checkpoint / to_string(model))) return checkpoint / to_string(model);
    }
  }
  return path;
}

Result<ModelFiles> find_model(const fs::path& folder) {
  std::error_code ignored;
  const fs::path file = folder / kAdapterConfig;
  if (!fs::exists(file, ignored)) return ModelFiles{folder, {}};
  if (has_weights(folder)) return ModelFiles{folder, folder};
  NEAP_TRY_ASSIGN(const Json config, read_adapter_config(file));
  const Json name = config.value("base_model_name_or_path", Json());
  const std::string base = name.is_string() ? name.get<std::string>() : "";
  for (const fs::path& from : {folder, fs::path()}) {
    if (!base.empty() && fs::exists(from / base / "config.json", ignored))
      return ModelFiles{from / base, folder};
  }
  return Status(
      ErrorCode::kNotFound,
      format("{}: base_model_name_or_path \"{}\" is not a folder with a config.json. Give "
             "the base's folder as the model and this one as its adapter "
             "(lora_adapter_path, or --adapter)",
             file.string(), excerpt(base, 200)));
}

}  // namespace neap::spec

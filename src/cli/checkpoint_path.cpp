#include "cli/checkpoint_path.h"

#include <system_error>

#include "base/format.h"
#include "base/status.h"

namespace neap::cli {
namespace fs = std::filesystem;

spec::ModelFiles model_files(const fs::path& path, const fs::path& adapter) {
  const fs::path folder = spec::find_model_folder(path, {spec::ModelId::kActor});
  std::error_code error;
  const bool whole = fs::exists(folder / "config.json", error) && spec::has_weights(folder);
  if (whole || fs::exists(folder / spec::kAdapterConfig, error)) {
    spec::ModelFiles files = value_or_throw(spec::find_model(folder));
    if (!adapter.empty()) files.adapter = adapter;
    return files;
  }
  throw Error(
      ErrorCode::kNotFound,
      format("{} is not a model, adapter, checkpoint or training output: there is neither a "
             "config.json with weights nor an {} in it, in actor/ or in latest/actor/",
             path.string(), spec::kAdapterConfig));
}

}  // namespace neap::cli

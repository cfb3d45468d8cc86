#include "cli/checkpoint_path.h"

#include <system_error>

#include "base/format.h"
#include "base/status.h"
#include "model/model_reader.h"

namespace neap::cli {
namespace fs = std::filesystem;

fs::path model_folder(const fs::path& path) {
  for (const char* inner : {"", "actor", "latest/actor"}) {
    std::error_code error;
    const fs::path folder = path / inner;
    if (fs::exists(folder / "config.json", error) && model::has_weights(folder)) return folder;
  }
  throw Error(ErrorCode::kNotFound,
              format("{} is no model, checkpoint or training output: there is no config.json with "
                     "weights in it, in actor/ or in latest/actor/",
                     path.string()));
}

}  // namespace neap::cli

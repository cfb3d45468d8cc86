#include "spec/model/model_configs.h"

#include <map>
#include <mutex>
#include <utility>

namespace neap::spec {

struct ModelConfigs::State {
  std::mutex mutex;
  std::map<std::filesystem::path, Architecture> architectures;
};

ModelConfigs::ModelConfigs() : state_(std::make_shared<State>()) {}

Result<Architecture> ModelConfigs::architecture(const std::filesystem::path& folder) const {
  const std::lock_guard lock(state_->mutex);
  const auto known = state_->architectures.find(folder);
  if (known != state_->architectures.end()) return known->second;
  NEAP_TRY_ASSIGN(Architecture read, Architecture::from_folder(folder));
  return state_->architectures.emplace(folder, std::move(read)).first->second;
}

}  // namespace neap::spec

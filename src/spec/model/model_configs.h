// The architectures of model folders. The files of a folder are read once; copies share what was
// read.
//
// Threads   any.
// Failure   that of Architecture::from_folder(); a later call tries again.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "spec/model/architecture.h"

namespace neap::spec {

class ModelConfigs {
 public:
  ModelConfigs();
  [[nodiscard]] Result<Architecture> architecture(const std::filesystem::path& folder) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace neap::spec

// Folders of models whose weights are there.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/format.h"
#include "golden/plan/jobs.h"

namespace neap::plan {

// Folders with weights, though empty ones, and the shapes of models here.
class WithWeights {
 public:
  WithWeights() {
    for (const char* model : {"opt13", "opt350"}) {
      const std::filesystem::path to = folder_ / model;
      std::filesystem::create_directories(to);
      std::filesystem::copy_file(kFolder / "models" / model / "config.json", to / "config.json",
                                 std::filesystem::copy_options::overwrite_existing);
      std::ofstream(to / spec::kModelWeights) << "";
    }
  }
  ~WithWeights() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::vector<std::string> paths() const {
    return {"actor_rollout_ref.model.path=" + (folder_ / "opt13").string(),
            "critic.model.path=" + (folder_ / "opt350").string()};
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / format("neap-plan-{}", ::getpid());
};

}  // namespace neap::plan

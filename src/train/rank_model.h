// A model of the job on this rank: its settings in a run, and the memory and ranks that it uses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "bridge/runtime.h"
#include "parallel/groups.h"
#include "spec/recipe/job_model.h"
#include "spec/types/homes.h"
#include "weights/open_folders.h"

namespace neap::train {

/// A model and its settings. Its folder may have no weights.
struct WorkerSpec : spec::JobModel {
  std::filesystem::path adapter{};  ///< folder of the adapter to continue; empty: a new adapter
  bool save_base = false;           ///< with LoRA: also save the base
  spec::ModelStorage storage{};
  std::int64_t zero_stage =
      0;  ///< ZeRO stage of optimizer states and gradients (spec/job/placement.h)
  /// For random initialisation, if the folder has no weights, and for stochastic rounding.
  std::uint64_t seed = 0;
  /// Whether a scalar head that is missing in the folder starts at zero. Otherwise it is an error.
  bool init_head = false;
  weights::OpenFolders folders{};  ///< of the run
};

/// `runtime`, which has the regions of the plan, and `groups` outlive it. It outlives what uses it.
struct RankModel {
  bridge::Runtime& runtime;
  const parallel::Groups& groups;
  WorkerSpec spec;

  [[nodiscard]] spec::TagId tag(spec::TagKind kind) const { return {kind, spec.id}; }
  /// Without `dtype`: of the compute type.
  [[nodiscard]] at::Tensor region(spec::TagKind kind, std::string_view part,
                                  std::optional<at::ScalarType> dtype = std::nullopt) const {
    return runtime.region(tag(kind), part, dtype.value_or(runtime.compute_dtype()));
  }
};

}  // namespace neap::train

// A model of a job, resolved from its files, as plans and runs need it.
//
// Threads   values.
// Failure   kInvalidArgument for files that cannot be read or an adapter that does not fit.
// Cost      reads config.json, unless the job has read it.
#pragma once

#include <optional>
#include <string>

#include "spec/job/job.h"
#include "spec/model/architecture.h"
#include "spec/recipe/recipe.h"
#include "spec/types/model_files.h"

namespace neap::spec {

struct JobModel {
  ModelId id = ModelId::kActor;
  ModelFiles files{};
  Architecture shape{};  ///< this rank's shard or stage of `whole`
  Architecture whole{};
  /// This rank's shard for rollouts, if rollouts use another tensor-parallel size or a copy of the
  /// weights. See generating().
  std::optional<Architecture> generation_part{};
  Head head = Head::kLanguageModel;
  bool generates = false;  ///< some phase generates with it
  bool trained = false;
  // For a trained model:
  LoraShape lora{};  ///< rank 0: no adapter
  OptimizerConfig optimizer{};

  /// The architecture of this rank in rollouts.
  [[nodiscard]] const Architecture& generating() const {
    return generation_part ? *generation_part : shape;
  }
  /// Whether rollouts use another tensor-parallel size.
  [[nodiscard]] bool divides_otherwise_to_generate() const {
    return generating().tensor.ranks != shape.tensor.ranks;
  }
  /// Whether updates change the blocks' weights, and not an adapter.
  [[nodiscard]] bool trains_blocks() const { return trained && lora.rank == 0; }
  /// The storage of what updates change: an adapter is on the device.
  [[nodiscard]] ModelStorage trained_storage(ModelStorage storage) const {
    if (!trains_blocks()) storage.layers = Home::kDevice;
    return storage;
  }
  /// Whether the head shares the embedding's weight.
  [[nodiscard]] bool ties_table() const { return shape.ties_table(head); }
  /// "actor"; for messages.
  [[nodiscard]] std::string name() const { return std::string(to_string(id)); }
};
/// The model as one rank has it. Ranks of the same stage have the same sizes.
[[nodiscard]] Result<JobModel> resolve(const Job& job, const Recipe& recipe, ModelId id,
                                       std::int64_t rank = 0);

}  // namespace neap::spec

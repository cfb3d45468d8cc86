// A model of a job, resolved from its files: what plans and runs take of it.
//
// Threads   values.   Failure   kInvalidArgument for files that cannot be read, and an adapter that does not fit.
// Cost      reads config.json.
#pragma once

#include <optional>
#include <string>

#include "spec/architecture.h"
#include "spec/job.h"
#include "spec/model_files.h"
#include "spec/recipe.h"

namespace neap::spec {

struct JobModel {
  ModelId id = ModelId::kActor;
  ModelFiles files{};
  Architecture shape{};  ///< of this rank: a part of `whole` where ranks divide the model
  Architecture whole{};
  /// Where ranks divide the model otherwise to generate: this rank's part there. See generating().
  std::optional<Architecture> generation_part{};
  Head head = Head::kLanguageModel;
  bool generates = false;  ///< responses, in some phase
  bool trained = false;
  // Of a trained model:
  LoraShape lora{};  ///< rank 0: none
  OptimizerConfig optimizer{};

  /// Of this rank where responses are generated.
  [[nodiscard]] const Architecture& generating() const {
    return generation_part ? *generation_part : shape;
  }
  /// Ranks have parts of another size there, by heads.
  [[nodiscard]] bool divides_otherwise_to_generate() const {
    return generating().tensor.ranks != shape.tensor.ranks;
  }
  /// An update changes its blocks, not an adapter's.
  [[nodiscard]] bool trains_blocks() const { return trained && lora.rank == 0; }
  /// The embedding's table is the head's, too.
  [[nodiscard]] bool ties_table() const { return shape.ties_table(head); }
  /// "actor", for people.
  [[nodiscard]] std::string name() const { return std::string(to_string(id)); }
};
/// A model of the job's recipe, as a rank of the job has it. Ranks of a stage have the same sizes.
[[nodiscard]] Result<JobModel> resolve(const Job& job, const Recipe& recipe, ModelId id,
                                       std::int64_t rank = 0);

}  // namespace neap::spec

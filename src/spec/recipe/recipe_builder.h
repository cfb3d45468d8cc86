// Builds a Recipe from a task's models and phases. It derives the tags.
//
// Threads   one.
// Failure   none.
#pragma once

#include <string>

#include "spec/job/job.h"
#include "spec/recipe/recipe.h"

namespace neap::spec {

/// Add models with their tags first, then phases. A phase's tags follow from what it does with its
/// model.
class RecipeBuilder {
 public:
  /// `job` must outlive the builder.
  RecipeBuilder(const Job& job, const StepModes& modes);

  void frozen(ModelId id, const std::string& path, Head head, const std::string& adapter = {}) {
    add_model({.id = id, .path = path, .head = head, .adapter = adapter});
  }
  void trained(const ModelSource& source);
  /// The tags of generations.
  void key_values() {
    add_tag(TagKind::kKeyValues, ModelId::kActor);
    if (modes_.graphs) add_tag(TagKind::kGraphs, ModelId::kActor);
  }

  /// Returns the new phase for further settings. The reference is valid until the next call.
  Phase& phase(PhaseId id, Body body, ModelId model);
  /// Backward and update, as one phase or two. `joined` is the name of the single phase.
  void update(PhaseId joined, Body body, ModelId model);

  /// Fills the tags of every phase and returns the recipe. It must be the last call.
  [[nodiscard]] Recipe take();

 private:
  void add_model(const ModelSource& source);
  void add_tag(TagKind kind, ModelId model) { recipe_.tags.push_back({kind, model}); }
  /// Whether generation reads the model's weights from a separate tag.
  [[nodiscard]] bool gathers_to_generate(const ModelSource& model) const {
    return model.storage.brings_layers() || places_generation_ || copies_;
  }
  // The job's tags, in order.
  void fill_tags(Phase& p) const;
  // Whether no phase of a step runs the model.
  [[nodiscard]] bool runs_once(ModelId model) const;
  // Adds a tag of the phase's own model. `adapted`: training changes the adapter instead of the
  // weights.
  void fill_own_tag(Phase& p, TagKind kind, TagId tag, bool adapted) const;

  const Job& job_;
  StepModes modes_;
  bool evaluates_, places_generation_, copies_, has_stages_;
  Recipe recipe_;
};

}  // namespace neap::spec

// Builds a Recipe from what a task says: its models and its phases. Tags follow from them.
//
// Threads   one.   Failure   none.
#pragma once

#include <string>

#include "spec/job.h"
#include "spec/recipe.h"

namespace neap::spec {

/// Adds models with their tags, then phases, whose tags follow from what they do with their model.
class RecipeBuilder {
 public:
  /// The job outlives it.
  RecipeBuilder(const Job& job, const ModelModes& modes);

  void frozen(ModelId id, const std::string& path, Head head, const std::string& adapter = {}) {
    add_model({.id = id, .path = path, .head = head, .adapter = adapter});
  }
  void trained(const ModelSource& source);
  void key_values() { add_tag(TagKind::kKeyValues, ModelId::kActor); }

  /// For the caller to say more of it, until the next one.
  Phase& phase(PhaseId id, Body body, ModelId model);
  /// Backward and update, in one phase or two. `joined`: the phase's name while it is one.
  void update(PhaseId joined, Body body, ModelId model);

  /// With the tags of every phase. It is the builder's last call.
  [[nodiscard]] Recipe take();

 private:
  void add_model(const ModelSource& source);
  void add_tag(TagKind kind, ModelId model) { recipe_.tags.push_back({kind, model}); }
  /// Where it generates, it reads memory of its own.
  [[nodiscard]] bool gathers_to_generate(const ModelSource& model) const {
    return model.streamed || model.sliced || places_generation_;
  }
  // The tags that the job has, in their order.
  void fill_tags(Phase& p) const;
  // No phase of a step runs the model.
  [[nodiscard]] bool runs_once(ModelId model) const;
  // A tag of the phase's own model. `adapted`: the adapter is what training changes.
  void fill_own_tag(Phase& p, TagKind kind, TagId tag, bool adapted) const;

  const Job& job_;
  ModelModes modes_;
  bool evaluates_, places_generation_, has_stages_;
  Recipe recipe_;
};

}  // namespace neap::spec

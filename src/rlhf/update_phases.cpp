#include "rlhf/update_phases.h"

namespace neap::rlhf {

UpdatePhases::UpdatePhases(bridge::Runtime& runtime, const spec::Recipe& recipe, spec::Body body)
    : runtime_(runtime),
      recipe_(recipe),
      body_(body),
      split_(recipe.find(body, spec::TrainPart::kAll) == nullptr) {}

void UpdatePhases::begin_backward() {
  if (split_ || !open_) enter(split_ ? spec::TrainPart::kBackward : spec::TrainPart::kAll);
}

void UpdatePhases::begin_update() {
  if (split_) enter(spec::TrainPart::kUpdate);
}

void UpdatePhases::enter(spec::TrainPart part) {
  close();
  open_ = runtime_.phase(recipe_.find(body_, part)->id);
}

void UpdatePhases::close() {
  if (!open_) return;
  const auto phase = std::move(open_);
  throw_if_error(phase->close());
}

void run_phase(bridge::Runtime& runtime, spec::PhaseId phase, const std::function<void()>& body) {
  const auto open = runtime.phase(phase);
  body();
  throw_if_error(open->close());
}

}  // namespace neap::rlhf

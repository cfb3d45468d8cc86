#include "rlhf/update_phases.h"

namespace neap::rlhf {

UpdatePhases::UpdatePhases(bridge::Runtime& runtime, spec::ModelId model, spec::PhaseId joined)
    : runtime_(runtime),
      joined_(joined),
      split_(runtime.plan().updates.of(model) != spec::UpdateMode::kJoined) {}

void UpdatePhases::begin_backward() {
  if (split_ || !open_) enter(split_ ? spec::TrainPart::kBackward : spec::TrainPart::kAll);
}

void UpdatePhases::begin_update() {
  if (split_) enter(spec::TrainPart::kUpdate);
}

void UpdatePhases::enter(spec::TrainPart part) {
  close();
  open_ = runtime_.phase(spec::phase_of(joined_, part));
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

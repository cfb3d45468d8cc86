// Opens and closes the phases in which a model is trained, as the plan divides them: one for every
// mini-batch together, or backward and update in turn.
//
// Threads   one at a time.   Failure   Error. Without close() the last phase ends with this object.
#pragma once

#include <functional>
#include <memory>

#include "bridge/runtime.h"
#include "spec/recipe.h"

namespace neap::rlhf {

class UpdatePhases {
 public:
  /// The phases of `recipe` with `body`. Both references outlive it.
  UpdatePhases(bridge::Runtime& runtime, const spec::Recipe& recipe, spec::Body body);

  /// Before the first forward of a mini-batch.
  void begin_backward();
  /// Before its optimizer step.
  void begin_update();
  void close();

 private:
  void enter(spec::TrainPart part);

  bridge::Runtime& runtime_;
  const spec::Recipe& recipe_;
  spec::Body body_;
  bool split_;
  std::unique_ptr<bridge::Runtime::Scope> open_;
};

/// Runs `body` in a phase and closes it.
void run_phase(bridge::Runtime& runtime, spec::PhaseId phase, const std::function<void()>& body);

}  // namespace neap::rlhf

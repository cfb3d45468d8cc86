// What a training phase has beside its model in a plan: trained units and this rank's pieces of them, their gradients,
// which ranks add up, and the update. As train/optimizer.h has them, with sizes and on clocks.
//
// Threads   one.
// Cost      below a microsecond a unit, and what the operations take.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/counted_blocks.h"
#include "plan/counted_gradients.h"
#include "plan/counted_peers.h"
#include "plan/tags.h"
#include "step/counting_ops.h"
#include "step/gradient_slots.h"
#include "step/trained_unit.h"
#include "step/update_parts.h"

namespace neap::plan {

class CountedTraining {
  using T = step::CountedTensor;
  using Units = std::vector<step::TrainedUnit<T>>;

 public:
  using Visit = std::function<void(const step::TrainedUnit<T>&)>;
  /// Of a phase that trains `role`. `blocks`: where they are streamed or sliced, else null. All but the phase outlive it.
  CountedTraining(step::CountingOps& ops, const ModelRole& role, step::Dtype dtype,
                  const spec::Phase& phase, CountedBlocks* blocks);
  CountedTraining(const CountedTraining&) = delete;
  CountedTraining& operator=(const CountedTraining&) = delete;

  [[nodiscard]] const spec::OptimizerSpec& optimizer() const { return optimizer_; }
  /// Those whose gradients this rank keeps, and those that it steps (step::Backend).
  [[nodiscard]] const Units& units() const { return gradients_ ? pieces_ : units_; }
  [[nodiscard]] const Units& pieces() const { return pieces_; }
  /// Of other ranks, where one plan is for all of them: they may take more memory.
  [[nodiscard]] const Units& of_others() const { return of_others_; }
  /// Where backward gives gradients to; null where they stay.
  [[nodiscard]] step::GradientSink<T>* sink();

  /// What is left of a mini-batch's sums over ranks.
  void reduce_gradients();
  /// visit(piece) for every piece, or part of one, in order, while it is on the device; then aside for each of others.
  void for_each_part(const Visit& visit);
  /// Weights that ranks have updated for each other.
  void gather_weights();

 private:
  void make_units(const spec::Phase& phase, const std::vector<bool>& rests);
  void make_pieces(const spec::Phase& phase);
  void keep_own_gradients(const spec::StatePlacement& placement, std::int64_t rank);
  void host_gradients(bool on_disk);
  void take_gradients();
  [[nodiscard]] std::int64_t begin_sums(double gradients);
  void stream_parts(const Visit& visit);
  void visit_part(CountedParts& counted, const step::UpdatePart& part, const Visit& visit);
  void gather_hosted(std::int64_t fullest);

  step::CountingOps& ops_;
  const ModelRole& role_;
  step::Dtype dtype_;
  CountedBlocks* blocks_;
  spec::OptimizerSpec optimizer_;
  Units units_, pieces_, of_others_;
  std::optional<CountedGradients> hosted_gradients_;                 // of pieces
  std::optional<step::GradientSlots<step::CountingOps>> gradients_;  // that are sliced
  struct Sums {
    double ended = 0, sent = 0;
  };
  std::vector<Sums> sums_;                  // of sliced gradients
  double lane_ = 0;                         // when the last ones have ended
  std::optional<CountedPeers> peers_;       // of gradients that ranks add up
  std::optional<step::UpdateParts> parts_;  // of streamed states
  Bytes slot_bytes_, window_bytes_;         // that these come to
  bool on_disk_ = false;                    // states
};

}  // namespace neap::plan

// Simulates the parts of a training phase other than its model: trained units, this rank's pieces,
// gradients, their reduction, and the update. It follows train/optimizer.h with sizes and simulated
// clocks.
//
// Threads   one.
// Cost      below a microsecond per unit, plus the operations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/counting/counted_blocks.h"
#include "plan/counting/counted_gradients.h"
#include "plan/counting/counted_peers.h"
#include "plan/counting/tags.h"
#include "step/counting/counting_ops.h"
#include "step/units/gradient_slots.h"
#include "step/units/trained_unit.h"
#include "step/units/update_parts.h"

namespace neap::plan {

class CountedTraining {
  using T = step::CountedTensor;
  using Units = std::vector<step::TrainedUnit<T>>;

 public:
  using Visit = std::function<void(const step::TrainedUnit<T>&)>;
  /// For a phase that trains `role`. `blocks` is null unless they are offloaded or sharded.
  /// Everything except the phase must outlive it.
  CountedTraining(step::CountingOps& ops, const ModelRole& role, step::Dtype dtype,
                  const spec::Phase& phase, CountedBlocks* blocks);
  CountedTraining(const CountedTraining&) = delete;
  CountedTraining& operator=(const CountedTraining&) = delete;

  [[nodiscard]] const spec::OptimizerSpec& optimizer() const { return optimizer_; }
  /// The units whose gradients this rank keeps, and the pieces that it updates (step::Backend).
  [[nodiscard]] const Units& units() const { return gradients_ ? pieces_ : units_; }
  [[nodiscard]] const Units& pieces() const { return pieces_; }
  /// Pieces of other ranks, if one plan is for all: they may take more memory.
  [[nodiscard]] const Units& of_others() const { return of_others_; }
  /// The receiver of backward's gradients; null if they stay in place.
  [[nodiscard]] step::GradientSink<T>* sink();

  /// Reduces the rest of a mini-batch's gradients.
  void reduce_gradients();
  /// Calls visit(piece) for every piece, or part of one, in order, while it is on the device. Then
  /// it visits the pieces of other ranks, for memory only.
  void for_each_part(const Visit& visit);
  /// All-gathers updated weights.
  void gather_weights();

 private:
  void make_units(const spec::Phase& phase, const std::vector<bool>& rests);
  void make_pieces(const spec::Phase& phase);
  void keep_own_gradients(const spec::StatePlacement& placement, std::int64_t rank);
  void host_gradients(spec::Home home);
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
  std::optional<CountedGradients> hosted_gradients_;  // of the pieces
  // Only if gradients are sharded.
  std::optional<step::GradientSlots<step::CountingOps>> gradients_;
  struct Sums {
    double ended = 0, sent = 0;
  };
  std::vector<Sums> sums_;                  // of sharded gradients
  double lane_ = 0;                         // when the last reduction has ended
  std::optional<CountedPeers> peers_;       // gradients that ranks all-reduce
  std::optional<step::UpdateParts> parts_;  // of offloaded states
  Bytes slot_bytes_, window_bytes_;         // buffers for these parts
  spec::Home states_ = spec::Home::kDevice;
};

}  // namespace neap::plan

#include "train/hosted_gradients.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "bridge/no_autograd.h"

namespace neap::train {

HostedGradients::HostedGradients(bridge::StreamedSlices& slices, std::vector<Piece> pieces,
                                 Complete complete)
    : slices_(slices), pieces_(std::move(pieces)), complete_(std::move(complete)) {
  const std::vector<bridge::SlotPart>& slots = slices_.slots();
  for (const Piece& piece : pieces_) {
    const auto found = std::find_if(slots.begin(), slots.end(),
                                    [&](const auto& slot) { return slot.name == piece.slot; });
    slots_.push_back(static_cast<std::size_t>(found - slots.begin()));
  }
}

bridge::StreamedSlices::Range HostedGradients::range_of(std::size_t piece) const {
  const Piece& own = pieces_[piece];
  return {own.from, Bytes(own.memory.nbytes()), Bytes()};
}

void HostedGradients::fetch(std::size_t piece) {
  throw_if_error(slices_.begin_after_work());
  throw_if_error(slices_.begin(slots_[piece], range_of(piece)));
}

at::Tensor HostedGradients::use(std::size_t piece) {
  throw_if_error(slices_.arrive(slots_[piece]));
  throw_if_error(slices_.wait_for_slot(slots_[piece]));
  return pieces_[piece].memory;
}

void HostedGradients::leave(std::size_t piece, bool complete) {
  const bridge::NoAutograd no_autograd;
  if (complete) complete_(piece, pieces_[piece].memory);
  throw_if_error(slices_.begin_after_work());
  throw_if_error(slices_.store(slots_[piece], range_of(piece)));
}

}  // namespace neap::train

#include "train/part_exchange.h"

#include <utility>

#include "bridge/no_autograd.h"
#include "ops/transformer.h"

namespace neap::train {
namespace {

// A box (rows, columns) of a flat unit.
at::Tensor box_of(const at::Tensor& flat, const spec::FlatUnit& unit, const spec::SharedBox& box,
                  const spec::SharedBox::Place& place) {
  at::Tensor matrix = ops::parameter_view(flat, unit.parameters[box.parameter]);
  if (matrix.dim() == 1) matrix = matrix.unsqueeze(1);
  return matrix.narrow(0, place.row, box.rows).narrow(1, place.column, box.columns);
}

}  // namespace

PartExchange::PartExchange(parallel::Communicator& holders, const spec::Architecture& whole,
                           Layouts layouts, const std::vector<spec::TensorShard>& wanted,
                           at::Tensor buffer)
    : holders_(holders), layouts_(std::move(layouts)), buffer_(std::move(buffer)) {
  for (const spec::FlatUnit& unit : layouts_.whole)
    transfers_.push_back(spec::part_transfers(whole, unit, wanted, spec::kTransferElements));
}

at::Tensor PartExchange::in_buffer(const spec::SharedBox& box, std::int64_t first) const {
  return buffer_.narrow(0, first, box.elements()).view({box.rows, box.columns});
}

void PartExchange::run(std::size_t unit, const at::Tensor& from, const at::Tensor& to) const {
  const bridge::NoAutograd no_autograd;
  const auto source = [&](const spec::SharedBox& box) {
    return box_of(from, layouts_.from[unit], box, box.from);
  };
  const auto target = [&](const spec::SharedBox& box) {
    return box_of(to, layouts_.to[unit], box, box.to);
  };
  for (const spec::PartTransfer& transfer : transfers_[unit]) {
    const bool gives = transfer.from == holders_.rank(), takes = transfer.to == holders_.rank();
    std::int64_t first = 0;
    if (gives && takes) {
      for (const spec::SharedBox& box : transfer.boxes) target(box).copy_(source(box));
    } else if (gives) {
      for (const spec::SharedBox& box : transfer.boxes) {
        in_buffer(box, first).copy_(source(box));
        first += box.elements();
      }
      holders_.send(buffer_.narrow(0, 0, first), static_cast<int>(transfer.to));
    } else if (takes) {
      holders_.receive(buffer_.narrow(0, 0, transfer.elements()), static_cast<int>(transfer.from));
      for (const spec::SharedBox& box : transfer.boxes) {
        target(box).copy_(in_buffer(box, first));
        first += box.elements();
      }
    }
  }
}

}  // namespace neap::train

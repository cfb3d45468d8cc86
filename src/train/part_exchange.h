// The parts that ranks generate with, from the parts of another division by heads that they train.
//
// Threads   one at a time.   Failure   Error, as of a communicator.
// Cost      a rank copies what it has, and sends and receives the rest (spec/part_transfers.h) by way of one buffer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "parallel/communicator.h"
#include "spec/part_transfers.h"

namespace neap::train {

class PartExchange {
 public:
  /// Layouts of the same units: of the whole model, of this rank's part where it trains and of the one where it
  /// generates.
  struct Layouts {
    std::vector<spec::FlatUnit> whole, from, to;
  };
  /// `holders` divide the model in training, and outlive it. `wanted`: the parts that they generate with. `buffer`: the
  /// elements of the largest transfer; undefined where there is none.
  PartExchange(parallel::Communicator& holders, const spec::Architecture& whole, Layouts layouts,
               const std::vector<spec::TensorShard>& wanted, at::Tensor buffer);

  /// Of a unit. Every one of them calls it for the same units in the same order.
  void run(std::size_t unit, const at::Tensor& from, const at::Tensor& to) const;

 private:
  [[nodiscard]] at::Tensor in_buffer(const spec::SharedBox& box, std::int64_t first) const;

  parallel::Communicator& holders_;
  Layouts layouts_;
  std::vector<std::vector<spec::PartTransfer>> transfers_;  // of each unit
  at::Tensor buffer_;
};

}  // namespace neap::train

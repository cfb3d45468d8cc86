// Converts training shards to rollout shards of another tensor-parallel size.
//
// Threads   one at a time.
// Failure   Error, as of a communicator.
// Cost      a rank copies what it has, and sends and receives the rest through one buffer
//           (spec/model/part_transfers.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "parallel/communicator.h"
#include "spec/model/part_transfers.h"

namespace neap::train {

class PartExchange {
 public:
  /// Layouts of the same units: of the whole model, of this rank's training shard, and of its
  /// rollout shard.
  struct Layouts {
    std::vector<spec::FlatUnit> whole, from, to;
  };
  /// `holders` is the training tensor-parallel group, which must outlive this. `wanted` are the
  /// group's rollout shards. `buffer` has the size of the largest transfer; undefined if there is
  /// none.
  PartExchange(parallel::Communicator& holders, const spec::Architecture& whole, Layouts layouts,
               const std::vector<spec::TensorShard>& wanted, at::Tensor buffer);

  /// Exchanges a unit. All holders call it for the same units in the same order.
  void run(std::size_t unit, const at::Tensor& from, const at::Tensor& to) const;

 private:
  [[nodiscard]] at::Tensor in_buffer(const spec::SharedBox& box, std::int64_t first) const;

  parallel::Communicator& holders_;
  Layouts layouts_;
  std::vector<std::vector<spec::PartTransfer>> transfers_;  // per unit
  at::Tensor buffer_;
};

}  // namespace neap::train

// Transfers between ranks when rollouts use another tensor-parallel size than training
// (spec/model/tensor_parallel.h): which rank sends which elements to which.
//
// The training tensor-parallel group holds the whole model, so each rank gets its missing elements
// from that group. Elements that a rank already has are copied locally. Every rank derives the same
// list.
//
// Order     local copies first, then rounds in which each rank sends or receives, but not both.
//           Executing the list in order cannot deadlock.
// Threads   stateless functions.
// Failure   none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/model/layout.h"
#include "spec/model/tensor_parallel.h"

namespace neap::spec {

/// A box of elements of a parameter that two shards share. A vector counts as one column.
struct SharedBox {
  struct Place {
    std::int64_t row = 0, column = 0;
  };
  std::size_t parameter = 0;  ///< number within its unit
  std::int64_t rows = 0, columns = 0;
  Place from{}, to{};  ///< position in the sender's shard, and in the receiver's
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

/// `from` and `to` are positions in the tensor-parallel group. If they are equal, it is a local
/// copy.
struct PartTransfer {
  std::int64_t from = 0, to = 0;
  std::vector<SharedBox> boxes{};
  [[nodiscard]] std::int64_t elements() const;
};

/// The rollout shards of the ranks of a tensor-parallel group, in order: of ranks `first`, `first`
/// + 1, ..., with `ranks` shards per model.
[[nodiscard]] std::vector<TensorShard> wanted_parts(std::int64_t count, std::int64_t first,
                                                    std::int64_t ranks);

/// The transfers of a unit of an unsharded model `whole`, for one target shard in `wanted` per
/// rank. A transfer between two ranks has at most `most` elements, or one row.
[[nodiscard]] std::vector<PartTransfer> part_transfers(const Architecture& whole,
                                                       const FlatUnit& unit,
                                                       const std::vector<TensorShard>& wanted,
                                                       std::int64_t most);

/// Maximum over such ranks of a job: elements of one transfer, and elements sent and received.
struct TransferSizes {
  std::int64_t largest = 0, busiest = 0;
};
[[nodiscard]] TransferSizes transfer_sizes(const Architecture& whole,
                                           const std::vector<FlatUnit>& units, std::int64_t from,
                                           std::int64_t to, std::int64_t most);

/// Elements of all concurrent transfers of a sender: 16 MiB of bfloat16.
constexpr std::int64_t kTransferElements = std::int64_t{8} << 20;

}  // namespace neap::spec

// From the parts that ranks have of a model to parts of another division by heads (spec/tensor_parallel.h): which rank
// gives which elements to another one.
//
// The ranks that divide a model have all of it together, so each gets what it lacks from these. What a rank has stays
// with it. Every rank derives the same list.
//
// Order     copies of a rank's own first; then in rounds, in each of which a rank gives or takes, not both: ranks that go
//           through the list in its order wait for nobody in a circle.
// Threads   functions without state.   Failure   none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/layout.h"
#include "spec/tensor_parallel.h"

namespace neap::spec {

/// Neighbouring elements of a parameter that two parts have: of a vector in one column.
struct SharedBox {
  struct Place {
    std::int64_t row = 0, column = 0;
  };
  std::size_t parameter = 0;  ///< of its unit
  std::int64_t rows = 0, columns = 0;
  Place from{}, to{};  ///< in the part of who gives it, and of who takes it
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

/// `from` and `to` are places among the ranks that divide the model; the same: a copy.
struct PartTransfer {
  std::int64_t from = 0, to = 0;
  std::vector<SharedBox> boxes{};
  [[nodiscard]] std::int64_t elements() const;
};

/// The parts that ranks which divide a model want, in their order: of ranks `first`, `first` + 1 ..., each divided by
/// `ranks`.
[[nodiscard]] std::vector<TensorShard> wanted_parts(std::int64_t count, std::int64_t first,
                                                    std::int64_t ranks);

/// Of a unit of a layout of `whole`, which is not divided, from one part for each of `wanted`. A transfer between two ranks has at
/// most `most` elements, or one row.
[[nodiscard]] std::vector<PartTransfer> part_transfers(const Architecture& whole,
                                                       const FlatUnit& unit,
                                                       const std::vector<TensorShard>& wanted,
                                                       std::int64_t most);

/// Of all such ranks of a job, by the ones that have most: elements of one transfer, and those that a rank gives and
/// takes.
struct TransferSizes {
  std::int64_t largest = 0, busiest = 0;
};
[[nodiscard]] TransferSizes transfer_sizes(const Architecture& whole,
                                           const std::vector<FlatUnit>& units, std::int64_t from,
                                           std::int64_t to, std::int64_t most);

/// Of transfers at once, for those that send them: 16 MiB of bfloat16.
constexpr std::int64_t kTransferElements = std::int64_t{8} << 20;

}  // namespace neap::spec

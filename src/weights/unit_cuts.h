// Copies between units of a whole model and the tensor-parallel shards of ranks
// (spec/model/tensor_parallel.h).
//
// Threads   none of its own.
//
// Failure   c10::Error from libtorch.
//
// Cost      a copy per range of a cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/job/placement.h"
#include "spec/model/layout.h"
#include "spec/model/tensor_parallel.h"

namespace neap::weights {

/// Elements that are contiguous both in the part and in the whole.
struct PartRun {
  std::int64_t part = 0, whole = 0, count = 0;
};

/// The runs restricted to elements [first, first + count) of the part. Their positions count from
/// `first`.
[[nodiscard]] std::vector<PartRun> within(const std::vector<PartRun>& runs, std::int64_t first,
                                          std::int64_t count);

class UnitCuts {
 public:
  /// Takes units of layouts of the whole `architecture`, and of one of its parts for `ranks` ranks.
  UnitCuts(spec::Architecture architecture, std::int64_t ranks, std::vector<spec::FlatUnit> whole,
           std::vector<spec::FlatUnit> part);

  [[nodiscard]] const std::vector<spec::FlatUnit>& whole() const { return whole_; }
  /// Copies a rank's part of a whole unit's elements. Padding is not changed.
  void take(std::size_t unit, std::int64_t rank, const at::Tensor& whole,
            const at::Tensor& part) const;
  /// As take(), for an optimizer state of these units, of shape (elements,).
  void take(const spec::WholeState& state, std::int64_t rank, const at::Tensor& whole,
            const at::Tensor& part) const;
  /// Positions of a rank's elements of a parameter. `part` is in the rank's unit, in ascending
  /// order; `whole` is in the whole parameter. Elements that several ranks hold are counted for the
  /// first one only.
  [[nodiscard]] std::vector<PartRun> runs(std::size_t unit, std::size_t parameter,
                                          std::int64_t rank) const;
  /// As runs() of a parameter, for a state.
  [[nodiscard]] std::vector<PartRun> runs(const spec::WholeState& state, std::int64_t rank) const;
  /// Padding of the whole state, which no rank holds. `part` counts its elements.
  [[nodiscard]] std::vector<PartRun> padding(const spec::WholeState& state) const;

 private:
  spec::Architecture architecture_;
  std::int64_t ranks_;
  std::vector<spec::FlatUnit> whole_, part_;
};

}  // namespace neap::weights

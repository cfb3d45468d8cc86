// Units of a whole model and of the parts that ranks have of it (spec/tensor_parallel.h): copies between them.
//
// Threads   none of its own.   Failure   c10::Error from libtorch.   Cost   a copy for each range of a cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/layout.h"
#include "spec/placement.h"
#include "spec/tensor_parallel.h"

namespace neap::weights {

/// Elements of a part, one after another, that are so in the whole, too.
struct PartRun {
  std::int64_t part = 0, whole = 0, count = 0;
};

/// What of runs is in elements [first, first + count) of the part, which are counted from `first` then.
[[nodiscard]] std::vector<PartRun> within(const std::vector<PartRun>& runs, std::int64_t first,
                                          std::int64_t count);

class UnitCuts {
 public:
  /// Units of layouts of `architecture`, which is whole, and of one of its parts, of `ranks`.
  UnitCuts(spec::Architecture architecture, std::int64_t ranks, std::vector<spec::FlatUnit> whole,
           std::vector<spec::FlatUnit> part);

  [[nodiscard]] const std::vector<spec::FlatUnit>& whole() const { return whole_; }
  /// What a rank has of a whole unit's elements. Padding stays as it is.
  void take(std::size_t unit, std::int64_t rank, const at::Tensor& whole,
            const at::Tensor& part) const;
  /// The same as take() of an optimizer's state of these units, (elements,).
  void take(const spec::WholeState& state, std::int64_t rank, const at::Tensor& whole,
            const at::Tensor& part) const;
  /// Where a rank's elements of a parameter are: `part` in its unit, ascending, `whole` in the whole parameter. What
  /// several ranks have is the first one's.
  [[nodiscard]] std::vector<PartRun> runs(std::size_t unit, std::size_t parameter,
                                          std::int64_t rank) const;
  /// The same of a state: in the part and in the whole.
  [[nodiscard]] std::vector<PartRun> runs(const spec::WholeState& state, std::int64_t rank) const;
  /// Padding of the whole state, which no rank has: `part` counts its elements.
  [[nodiscard]] std::vector<PartRun> padding(const spec::WholeState& state) const;

 private:
  spec::Architecture architecture_;
  std::int64_t ranks_;
  std::vector<spec::FlatUnit> whole_, part_;
};

}  // namespace neap::weights

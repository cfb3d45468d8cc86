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

namespace neap::model {

/// Elements of a part, one after another, that are so in the whole, too.
struct PartRun {
  std::int64_t part = 0, whole = 0, count = 0;
};

class UnitCuts {
 public:
  /// Units of layouts of `architecture`, which is whole, and of one of its parts, of `ranks`.
  UnitCuts(spec::Architecture architecture, std::int64_t ranks, std::vector<spec::FlatUnit> whole,
           std::vector<spec::FlatUnit> part);

  [[nodiscard]] const std::vector<spec::FlatUnit>& whole() const { return whole_; }
  /// What a rank has of a whole unit's elements. Padding stays as it is.
  void take(std::size_t unit, std::int64_t rank, const at::Tensor& whole,
            const at::Tensor& part) const;
  /// The inverse.
  void put(std::size_t unit, std::int64_t rank, const at::Tensor& part,
           const at::Tensor& whole) const;
  /// The same as take() of an optimizer's state of these units, (elements,).
  void take(const spec::WholeState& state, std::int64_t rank, const at::Tensor& whole,
            const at::Tensor& part) const;
  /// Where elements of such a state of a rank are in the whole one, ascending in the part. What several ranks have is
  /// the first one's.
  [[nodiscard]] std::vector<PartRun> runs(const spec::WholeState& state, std::int64_t rank) const;
  /// Padding of the whole state, which no rank has: `part` counts its elements.
  [[nodiscard]] std::vector<PartRun> padding(const spec::WholeState& state) const;

 private:
  /// visit(view of the whole unit, view of the part) for each range.
  template <class Visit>
  void for_each_range(std::size_t unit, std::int64_t rank, const at::Tensor& whole,
                      const at::Tensor& part, const Visit& visit) const;
  template <class Visit>
  void for_each_range(const spec::WholeState& state, std::int64_t rank, const at::Tensor& whole,
                      const at::Tensor& part, const Visit& visit) const;

  spec::Architecture architecture_;
  std::int64_t ranks_;
  std::vector<spec::FlatUnit> whole_, part_;
};

}  // namespace neap::model

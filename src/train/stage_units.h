// The units of a model that stages of a pipeline divide, from the stage that has each, or whose ranks have slices of it.
//
// Threads   one at a time.   Failure   Error, as of a communicator.
// Cost      broadcasts each unit over the stages. Where all come together, each stage takes its own beside the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "parallel/communicator.h"
#include "spec/layout.h"
#include "train/unit_source.h"

namespace neap::train {

class StageUnits final : public UnitSource {
 public:
  struct Unit {
    int stage = 0;  ///< that sends it
    /// It comes to a tensor, from this stage's own ranks; every one of them calls it. Empty: this stage has it not.
    std::function<void(const at::Tensor& to)> take;
  };
  /// `stages`, which may be one, outlive it. `place`: where a unit is that is taken, (elements of the largest,);
  /// undefined: none is.
  StageUnits(parallel::Communicator& stages, std::vector<spec::FlatUnit> layout,
             std::vector<Unit> units, at::Tensor place);

  void gather(const std::vector<at::Tensor>& whole) override;
  void gather_each(const TakeUnit& take) override;

 private:
  void take_own(std::size_t unit, const at::Tensor& to);

  parallel::Communicator& stages_;
  std::vector<spec::FlatUnit> layout_;
  std::vector<Unit> units_;
  at::Tensor place_;
};

}  // namespace neap::train

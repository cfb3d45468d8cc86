// The units of a model with pipeline stages, broadcast from the stage that has each. The stage's
// ranks may have ZeRO shards of it.
//
// Threads   one at a time.
// Failure   Error, as of a communicator.
// Cost      broadcasts each unit over the stages. If all units are gathered at once, each stage
//           loads its own units meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "parallel/communicator.h"
#include "spec/model/layout.h"
#include "train/unit_source.h"

namespace neap::train {

class StageUnits final : public UnitSource {
 public:
  struct Unit {
    int stage = 0;  ///< stage that sends it
    /// Copies the unit to a tensor from this stage's ranks; every one of them calls it. Empty: the
    /// unit is on another stage.
    std::function<void(const at::Tensor& to)> take;
  };
  /// `stages`, which may be one, must outlive it. `place` is the buffer for a unit that is taken,
  /// with the elements of the largest unit; undefined: units are not taken.
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

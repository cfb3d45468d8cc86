// The units of one rank, of a model's weights or of its adapters, and their place in the whole model.
//
// Threads   a value.
// Failure   that of the fills.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "spec/recipe/job_model.h"
#include "weights/unit_cuts.h"

namespace neap::train {

/// Fills the defined tensors of units [first, first + flat.size()).
using UnitFill = std::function<void(std::size_t first, const std::vector<at::Tensor>& flat)>;

class ModelPart {
 public:
  enum class Of { kBase, kAdapters };
  ModelPart(const spec::JobModel& model, Of units);

  [[nodiscard]] bool adapters() const { return units_ == Of::kAdapters; }
  /// The units of another shard of the model.
  [[nodiscard]] std::vector<spec::FlatUnit> layout_of(const spec::Architecture& shape) const;
  /// This rank's units; those of the whole model; and the numbers of the former among the latter.
  [[nodiscard]] const std::vector<spec::FlatUnit>& layout() const { return layout_; }
  [[nodiscard]] const std::vector<spec::FlatUnit>& whole() const { return whole_; }
  [[nodiscard]] const std::vector<std::size_t>& numbers() const { return numbers_; }

  [[nodiscard]] const spec::TensorShard& shard() const { return shape_.tensor; }
  /// Whether tensor-parallel ranks cut units.
  [[nodiscard]] bool cut() const { return cuts_.has_value(); }
  [[nodiscard]] bool has_stages() const { return shape_.pipeline.stages > 1; }
  /// The stage with a unit of the whole model. For a unit on two stages it is the first.
  [[nodiscard]] std::int64_t stage_of(std::size_t number) const { return stages_[number]; }
  /// False if another stage also has the unit of the whole model and writes it.
  [[nodiscard]] bool writes(std::size_t number) const {
    return stage_of(number) == shape_.pipeline.stage;
  }

  /// Converts a fill of the whole model's units to one of this rank's, and must outlive it. Units
  /// that are cut use host memory, one at a time.
  [[nodiscard]] UnitFill of_part(UnitFill whole) const;
  /// The functions of UnitCuts, which also work if units are not cut.
  [[nodiscard]] std::vector<weights::PartRun> runs(std::size_t unit, std::size_t parameter) const;
  [[nodiscard]] std::vector<weights::PartRun> runs(const spec::WholeState& state) const;
  // Only if units are cut; take() copies this rank's part of a state:
  [[nodiscard]] std::vector<weights::PartRun> padding(const spec::WholeState& state) const {
    return cuts_->padding(state);
  }
  void take(const spec::WholeState& state, const at::Tensor& whole, const at::Tensor& part) const {
    cuts_->take(state, shard().rank, whole, part);
  }

 private:
  spec::Architecture shape_;
  spec::Head head_;
  spec::LoraShape lora_;
  Of units_;
  std::vector<spec::FlatUnit> layout_, whole_;
  std::vector<std::size_t> numbers_;
  std::vector<std::int64_t> stages_;  // of the whole model's units
  std::optional<weights::UnitCuts> cuts_;
};

}  // namespace neap::train

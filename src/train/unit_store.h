// Where the weights of a part of a model are stored: on the device, in host memory, on disk, in the
// model's files, or in ZeRO shards. Blocks that are not on the device pass through prefetch buffers.
//
// Ranks     check_equal(), gather() and gather_each() are called by every rank.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/slot_blocks.h"
#include "spec/job/placement.h"
#include "train/collective_files.h"
#include "train/model_part.h"
#include "train/rank_model.h"

namespace neap::train {

/// Offloaded data as a tensor (elements,).
[[nodiscard]] at::Tensor host_tensor(const bridge::Resting& rests, std::int64_t elements,
                                     at::ScalarType dtype);

class UnitStore {
 public:
  UnitStore(const RankModel& model, ModelPart part) : model_(model), part_(std::move(part)) {}
  virtual ~UnitStore() = default;
  UnitStore(const UnitStore&) = delete;

  [[nodiscard]] const ModelPart& part() const { return part_; }
  /// This rank's elements of each unit, where they are stored. Undefined: the model's files hold them.
  [[nodiscard]] const std::vector<at::Tensor>& values() const { return values_; }
  /// Which elements of a unit these are.
  [[nodiscard]] virtual spec::UnitSlices::Range range(std::size_t unit) const {
    return {0, part_.layout()[unit].elements};
  }
  /// Whether data-parallel ranks have shards of units.
  [[nodiscard]] virtual bool sharded() const { return false; }
  /// The tag with values(); nullopt: none of them are in regions.
  [[nodiscard]] virtual std::optional<spec::TagId> tag() const;
  /// The storage of an offloaded unit, or of the rank's shard of all units; nullopt: on the device.
  using Rests = std::optional<bridge::Resting>;
  [[nodiscard]] virtual Rests offloaded(std::size_t) const { return {}; }
  [[nodiscard]] virtual Rests offloaded_gradients(std::size_t) const { return {}; }

  // Used by passes:
  /// The tensor of each unit while it is used; for one that passes through buffers, the first.
  [[nodiscard]] virtual std::vector<at::Tensor> places() const { return values_; }
  /// The buffers that units pass through, for gradients of this type; nullopt: there are none.
  [[nodiscard]] virtual std::optional<ops::StreamedBase> streamed(at::ScalarType);
  /// The tensor where backward adds a unit's gradients.
  [[nodiscard]] virtual at::Tensor gradients(std::size_t unit, at::ScalarType dtype) const;
  /// If a unit's gradients are offloaded: only `size` bytes from `first` are copied to the host.
  virtual void keep_gradients(std::size_t /*unit*/, Bytes /*first*/, Bytes /*size*/) {}

  /// `fill` fills whole units. Padding becomes zero.
  virtual void fill(const UnitFill& fill);
  /// If offloaded units are read from the model's files: sets the folder of these files.
  virtual void read_from(const std::filesystem::path& /*folder*/) {}
  /// Visits the elements that this rank writes to files of the whole model. Ranks with equal
  /// elements divide the tensors among each other.
  void visit_parts(const PartVisit& visit) const;
  /// Fails on every rank if ranks that should have equal values do not.
  void check_equal() const;

  // For rollouts. Ranks with shards call these functions together. Later work of the device waits for
  // the copies.
  /// Copies a unit to its rollout weights `to`. Shards and blocks on disk are brought in order.
  virtual void bring(std::size_t unit, const at::Tensor& to);
  /// Copies every unit to its tensor. Without shards, units whose tensor is undefined are left out.
  virtual void gather(const std::vector<at::Tensor>& whole);
  /// Passes each unit in turn to `take`, which reads the tensor on this thread's stream: the next unit
  /// may use the same memory.
  using TakeUnit = std::function<void(std::size_t unit, const at::Tensor& whole)>;
  virtual void gather_each(const TakeUnit& take);

 protected:
  /// Adds the buffers of inputs, if inputs are offloaded apart from the weights.
  void add_inputs(ops::StreamedBase& to) const;
  /// The part of the rollout weights that bring() fills.
  [[nodiscard]] bridge::SlotPart place_to_generate(std::size_t unit) const;

  const RankModel& model_;
  ModelPart part_;
  std::vector<at::Tensor> values_;

 private:
  void check_equal_tables() const;
};

/// The states of trained units, on which rank each is.
[[nodiscard]] spec::StatePlacement place_states(const RankModel& model, const ModelPart& trained);

/// The store of a model's weights, or of its adapters, by the plan.
[[nodiscard]] std::unique_ptr<UnitStore> make_units(const RankModel& model, ModelPart::Of units);
[[nodiscard]] std::unique_ptr<UnitStore> make_streamed_units(const RankModel& model,
                                                             ModelPart part);

}  // namespace neap::train

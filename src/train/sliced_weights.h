// ZeRO-3 weights: each rank has a shard, and units are all-gathered into a few buffers while they
// are used.
//
// Model     Blocks use two prefetch buffers; the embedding and the head share another one. A pass
//           starts with the embedding, and a head follows the last block. Units are all-gathered in
//           the order of their use and released without a copy. The next block is gathered while
//           one computes, or before it (always over MPI): see step::gathers_overlap_passes. So all
//           ranks must run the same number of passes and use units in the same order. If the shard
//           is in host memory, the rank's part of a unit is first loaded to its place in the
//           buffer. If it is on disk, the part of the block after that is read in advance.
// Threads   one at a time.
// Failure   Error, as of a communicator. A failure of release() is thrown by the next use().
// Cost      each pass gathers the whole model once; a backward gathers the blocks and the head once
//           more.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "bridge/streamed_slices.h"
#include "parallel/communicator.h"
#include "spec/model/unit_slices.h"
#include "spec/recipe/job_model.h"
#include "step/units/sliced_tables.h"
#include "step/units/windowed_blocks.h"

namespace neap::train {

class SlicedWeights final : public step::WindowedBlocks {
 public:
  /// The buffers of gathered units. A block's buffer has the elements of the largest block; the
  /// buffer of tables has those of the larger one.
  struct Memory {
    std::vector<at::Tensor> slots;
    at::Tensor tables;
  };
  /// `slice` is this rank's shard. It is in host memory if there is a `host`, which loads it.
  /// `ranks` is the shard group. Both must outlive this. `overlaps`: gathers run while passes
  /// compute. Otherwise, later work of the device waits for each gather.
  SlicedWeights(parallel::Communicator& ranks, const spec::JobModel& model, spec::UnitSlices slices,
                const at::Tensor& slice, Memory memory, bool overlaps,
                bridge::StreamedSlices* host = nullptr);

  /// This rank's elements of each unit.
  [[nodiscard]] const std::vector<at::Tensor>& own() const { return own_; }
  [[nodiscard]] const spec::UnitSlices& slices() const { return slices_; }
  [[nodiscard]] const std::vector<at::Tensor>& slots() const { return memory_.slots; }
  /// The buffer of each unit while it is used; the first buffer for blocks.
  [[nodiscard]] std::vector<at::Tensor> places() const;

  /// A unit's rollout weights. For a shard in host memory: the part that they are.
  struct Target {
    std::size_t unit = 0;
    at::Tensor whole;
    bridge::SlotPart part{};
  };
  /// Gathers units into them. Later work of the device waits for it. Every rank calls it, with
  /// units in the same order.
  void gather(const std::vector<Target>& units);
  /// Gathers each unit into the buffer where passes use it, for `take` (UnitStore).
  void gather_each(const std::function<void(std::size_t unit, const at::Tensor& whole)>& take);

  /// Drops the contents of all buffers, because they predate the last update.
  void expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override;
  [[nodiscard]] std::int64_t further_passes(std::int64_t own) override {
    return ranks_.more_elsewhere(own);
  }

 private:
  [[nodiscard]] Status begin_after_work() override {
    return host_ != nullptr ? host_->begin_after_work() : Status();
  }
  [[nodiscard]] Status bring(step::BlockWindow::Place place) override;
  [[nodiscard]] Status wait_for_slot(std::size_t slot) override;
  [[nodiscard]] Status leave(std::size_t, step::BlockWindow::Leaving) override { return {}; }
  [[nodiscard]] Status begin_turn(step::Table table, const step::TableTurns::Turn& turn) override;
  [[nodiscard]] Status end_turn(const step::TableTurns::Turn&) override { return {}; }

  // For a shard in host memory: a unit's range of it, to be copied to byte `to` of its destination.
  [[nodiscard]] bridge::StreamedSlices::Range range_of(std::size_t unit, std::int64_t to) const;
  // Starts a gather after the buffer's loads, if any.
  std::int64_t begin(std::size_t slot,
                     const std::vector<parallel::Communicator::PartialGather>& gathers);
  void fetch(std::size_t slot, std::size_t unit, std::int64_t to = 0);
  [[nodiscard]] at::Tensor place_of(const step::SlicedTables::Placed& placed) const;
  [[nodiscard]] parallel::Communicator::PartialGather gather_of(std::size_t unit,
                                                                const at::Tensor& to) const;

  parallel::Communicator& ranks_;
  std::vector<spec::FlatUnit> units_;
  spec::UnitSlices slices_;
  std::vector<at::Tensor> own_;
  Memory memory_;
  step::SlicedTables tables_;
  bool overlaps_;
  bridge::StreamedSlices* host_;  // null: the shard is on the device
  // On a GPU: a stream that waits for loads; gathers start after it.
  std::optional<c10::Stream> fetched_;
  std::vector<std::size_t> blocks_;   // units of the blocks
  std::vector<std::int64_t> filled_;  // the gather that fills each buffer
};

}  // namespace neap::train

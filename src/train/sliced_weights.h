// A model's weights of which each rank has a slice, and memory that a few units come to while they are used (ZeRO-3).
//
// Model     Blocks have two slots; the embedding and the head come to the same memory in turns. A pass begins with a
//           turn of the embedding, and a head has one behind the last block. Units are gathered from all ranks in the
//           order in which the passes use them, and leave without a copy. The next block comes while one computes, or
//           before (over MPI always): see step::gathers_overlap_passes. So every rank has to run as many passes, and
//           use the units of each in the same order. Where the slice rests on the host a unit's part of it comes to its
//           place in the unit first. On disk, that of the block behind is read meanwhile.
// Threads   one at a time.
// Failure   Error, as of a communicator; of release() at the next use().
// Cost      each pass gathers the whole model once, and going back the blocks and the head once more.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "bridge/streamed_slices.h"
#include "parallel/communicator.h"
#include "spec/job_model.h"
#include "spec/unit_slices.h"
#include "step/sliced_tables.h"
#include "step/windowed_blocks.h"
#include "train/unit_source.h"

namespace neap::train {

class SlicedWeights final : public step::WindowedBlocks, public UnitSource {
 public:
  /// Where units come to: each slot has the elements of the largest block, the tables' memory those of the
  /// largest turn.
  struct Memory {
    std::vector<at::Tensor> slots;
    at::Tensor tables;
  };
  /// `slice`: of this rank, in host memory where there is a `host` that brings it. `ranks` have the same part of the
  /// model, and outlive this, as the host does. `overlaps`: gathers run while passes compute; else what the device is
  /// given next begins behind each.
  SlicedWeights(parallel::Communicator& ranks, const spec::JobModel& model, spec::UnitSlices slices,
                const at::Tensor& slice, Memory memory, bool overlaps,
                bridge::StreamedSlices* host = nullptr);

  /// This rank's elements of each unit.
  [[nodiscard]] const std::vector<at::Tensor>& own() const { return own_; }
  [[nodiscard]] const spec::UnitSlices& slices() const { return slices_; }
  [[nodiscard]] const std::vector<at::Tensor>& slots() const { return memory_.slots; }
  /// Where each unit is while it is used, a block in the first slot.
  [[nodiscard]] std::vector<at::Tensor> places() const;

  /// One unit, to `part`, which is `whole`; what the device is given next begins when it is there. Every rank calls it, for
  /// units in order.
  void gather_unit(std::size_t unit, const at::Tensor& whole, const bridge::SlotPart& part);
  /// Of a slice on the host: the parts that gather() is for.
  void set_generating(std::vector<bridge::SlotPart> units) { generating_ = std::move(units); }
  void gather(const std::vector<at::Tensor>& whole) override;
  /// To where they are used.
  void gather_each(const TakeUnit& take) override;

  /// Every slot holds weights of before the last update.
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

  // Of a slice on the host: a unit's range of it, for a place whose first byte is `to`.
  [[nodiscard]] bridge::StreamedSlices::Range range_of(std::size_t unit, std::int64_t to) const;
  // Behind the slot's fetches, if any.
  std::int64_t begin(std::size_t slot,
                     const std::vector<parallel::Communicator::PartialGather>& gathers);
  void fetch(std::size_t slot, std::size_t unit, std::int64_t to = 0);
  // Of a slice on the host, to where it generates.
  [[nodiscard]] std::int64_t begin_to(std::size_t unit, const at::Tensor& whole,
                                      const bridge::SlotPart& part);
  // What comes of the block behind.
  void read_ahead();
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
  bridge::StreamedSlices* host_;  // null: the slice is on the device
  std::vector<bridge::SlotPart> generating_;
  std::optional<c10::Stream>
      fetched_;                       // of a GPU: gathers begin behind it, and it waits for fetches
  std::vector<std::size_t> blocks_;   // their units
  std::vector<std::int64_t> filled_;  // by slot: what comes there
};

}  // namespace neap::train

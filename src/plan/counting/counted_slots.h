// Prefetch buffers of offloaded or sharded blocks and tables on the clocks of a plan.
//
// step/units/windowed_blocks.h decides what is loaded. This class counts when loads and stores start
// and how long passes wait for them, as bridge/streamed_blocks.h and train/sliced_weights.h do it.
//
// Threads   one.
// Cost      below a microsecond per use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "plan/counting/tags.h"
#include "step/counting/counting_ops.h"
#include "step/units/units.h"
#include "step/units/windowed_blocks.h"

namespace neap::plan {

/// Layers and tables that are offloaded, or sharded over ranks.
struct CountedLayers {
  std::vector<PartPlan> blocks;  ///< weights
  HostedTables tables;
  std::optional<spec::Dtype> gradients;     ///< their type, if the blocks are trained
  spec::Home home = spec::Home::kHost;      ///< of blocks with their gradients, or of shards
  spec::Home inputs = spec::Home::kDevice;  ///< of inputs of blocks
  bool tables_in_files = false;
  bool each_once = false;  ///< a phase ends with each mini-batch
  // For ZeRO-3 weights. `tables` only says which of them are used:
  std::optional<spec::DataParallel> ranks{};
  std::array<Bytes, 2> turns{};  ///< bytes that are gathered for each table
  bool overlaps = false;         ///< gathers overlap with passes
  // If a rank's shard is in host memory: the bytes that are loaded before each block is gathered,
  // and before each table.
  std::vector<Bytes> own{};
  std::array<Bytes, 2> own_turns{};
  [[nodiscard]] bool streams_inputs() const { return inputs != spec::Home::kDevice; }
};
[[nodiscard]] CountedLayers offloaded_layers(const ModelRole& role, spec::Dtype dtype,
                                             const spec::ModelStorage& storage);
/// Inputs alone.
[[nodiscard]] CountedLayers offloaded_inputs(const ModelRole& role, spec::Dtype dtype);
/// For a ZeRO-3 model. `overlaps` is as in SlicedWeights, on GPUs.
[[nodiscard]] CountedLayers sharded_layers(const ModelRole& role, spec::Dtype dtype,
                                           spec::Home home, bool overlaps);

class CountedSlots final : public step::WindowedBlocks {
  using T = step::CountedTensor;

 public:
  /// The first two arguments must outlive it.
  CountedSlots(step::CountingOps& ops, const step::Weights<T>& weights, CountedLayers layers);
  CountedSlots(const CountedSlots&) = delete;
  CountedSlots& operator=(const CountedSlots&) = delete;
  ~CountedSlots() override { drain(); }

  [[nodiscard]] const CountedLayers& layers() const { return layers_; }
  void begin_mini_batch(std::int64_t passes_back) override;
  /// A stage begins the backward of a micro-batch of the mini-batch. A plan skips some equal ones.
  void begin_pass_back(std::int64_t micro_batch) { completes_ = micro_batch + 1 == passes_back_; }
  void expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override;
  void set_input_bytes(std::int64_t bytes) override { input_bytes_ = static_cast<double>(bytes); }
  Place use(std::size_t block, step::BlockUse how) override;
  void release(std::size_t) noexcept override { WindowedBlocks::release(used_); }
  step::TableTurns::Turn use_table(step::Table table, step::BlockUse how) override;
  /// When a unit's gradients are complete, `bytes` of them are offloaded.
  void keep_own(step::UnitKey unit, Bytes bytes) { own_[unit] = bytes; }
  /// For ZeRO-3 weights: enqueues another collective of `seconds` after the started gathers.
  /// Returns when it ends.
  double begin_behind_gathers(double seconds);

  /// The gradients of a block by its number, or of the table in use.
  [[nodiscard]] T gradients_of(step::UnitKey unit) const;

 private:
  // A queued load. It is counted when its block is used, because a plan skips equal blocks and so
  // uses other blocks than a run would load next.
  struct Fetch {
    step::BlockWindow::Place place;
    double from = 0, gradients_from = 0;
  };
  [[nodiscard]] Status begin_after_work() override;
  [[nodiscard]] Status bring(step::BlockWindow::Place place) override;
  [[nodiscard]] Status wait_for_slot(std::size_t slot) override;
  [[nodiscard]] Status leave(std::size_t block, step::BlockWindow::Leaving what) override;
  [[nodiscard]] Status begin_turn(step::Table table, const step::TableTurns::Turn& turn) override;
  [[nodiscard]] Status end_turn(const step::TableTurns::Turn& turn) override;

  void fetch(const Fetch& fetch);
  // For shards in host memory: this rank's bytes of a block.
  [[nodiscard]] Bytes own_bytes(std::size_t block) const;
  // Starts a load at `from` or later. For shards in host memory the gather follows a copy of `own`
  // bytes. Returns when it ends.
  double load(double bytes, double from, Bytes own);
  void wait(double time);
  // For shards on disk: no further block is read.
  void end_reads();
  // All transfers have been waited for.
  void drain();
  [[nodiscard]] bool is_on_disk() const { return spec::is_staged(layers_.home); }
  [[nodiscard]] Bytes turn_bytes(step::Table table, std::size_t unit) const;
  [[nodiscard]] spec::Dtype dtype() const { return ops_.dtype(step::any_weight(weights_)); }
  [[nodiscard]] double gradient_bytes(std::size_t block) const;
  // The gradient bytes of a unit that are offloaded: all of them, or this rank's.
  [[nodiscard]] double leaving_bytes(step::UnitKey unit) const;

  step::CountingOps& ops_;
  const step::Weights<T>& weights_;
  CountedLayers layers_;
  std::map<step::UnitKey, Bytes> own_;
  double input_bytes_ = 0;        // of a block and a group of micro-batches
  std::int64_t passes_back_ = 0;  // backward passes per mini-batch
  // The current backward pass is the last one that adds to gradients.
  std::optional<bool> completes_;
  Place place_;                  // of the block in use
  step::TableTurns::Turn turn_;  // the last one
  step::Table turn_table_ = step::Table::kHead;
  step::Sweep sweep_ = step::Sweep::kForward;
  std::int64_t passes_ = 0;
  spec::BlockChunk chunk_{};             // blocks that passes go through
  std::size_t position_ = 0, used_ = 0;  // position in a forward sweep; the block in use
  std::deque<Fetch> queued_;
  // Times of each buffer's last copies, and the times that queued copies wait for.
  std::array<double, kBlockSlots> filled_{}, stored_{};
  // For gradients on disk: end of the write from the buffer's window.
  std::array<double, kBlockSlots> written_{};
  double work_ = 0, last_stored_ = 0, held_ = 0;
  // For shards on disk: when the last one had been read, how much of that was hidden by
  // computation, and whether the next block's read starts then.
  double read_ = 0, hidden_ = 0;
  bool read_ahead_ = false;
  double gathered_ = 0,
         sent_ = 0;  // for ZeRO-3 weights: end of the last gather; bytes that no wait has counted
};

}  // namespace neap::plan

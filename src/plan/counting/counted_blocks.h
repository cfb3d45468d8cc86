// Offloaded or sharded blocks and tables in a plan: which of them are in prefetch buffers, and when
// they are loaded. It simulates step/units/windowed_blocks.h, bridge/streamed_blocks.h and
// train/sliced_weights.h on simulated clocks.
//
// Threads   one.
// Cost      below a microsecond per use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/counting/tags.h"
#include "step/counting/counting_ops.h"
#include "step/units/units.h"

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
};
[[nodiscard]] CountedLayers offloaded_layers(const ModelRole& role, spec::Dtype dtype,
                                             const spec::ModelStorage& storage);
/// Inputs alone.
[[nodiscard]] CountedLayers offloaded_inputs(const ModelRole& role, spec::Dtype dtype);
/// For a ZeRO-3 model. `overlaps` is as in SlicedWeights, on GPUs.
[[nodiscard]] CountedLayers sharded_layers(const ModelRole& role, spec::Dtype dtype,
                                           spec::Home home, bool overlaps);

class CountedBlocks final : public step::BlockSource<step::CountedTensor> {
  using T = step::CountedTensor;

 public:
  /// The first two arguments must outlive it.
  CountedBlocks(step::CountingOps& ops, const step::Weights<T>& weights, CountedLayers layers);
  CountedBlocks(const CountedBlocks&) = delete;
  CountedBlocks& operator=(const CountedBlocks&) = delete;
  ~CountedBlocks() override { drain(); }

  void begin_mini_batch(std::int64_t passes_back) override;
  void expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override;
  /// A stage begins the backward of a micro-batch of the mini-batch. A plan skips some equal ones.
  void begin_pass_back(std::int64_t micro_batch) { completes_ = micro_batch + 1 == passes_back_; }
  [[nodiscard]] bool uses_alike() const override;
  void begin_group(std::int64_t rows) override;
  [[nodiscard]] T inputs(std::int64_t first, std::int64_t count) override;
  [[nodiscard]] const step::Block<T>& use(std::size_t block, step::BlockUse how) override;
  void release(std::size_t block) noexcept override;
  [[nodiscard]] bool has_gradients() const override { return layers_.gradients.has_value(); }
  [[nodiscard]] bool has_turn(step::Table table, step::BlockUse how) const override {
    return layers_.tables.turns.takes(table, how);
  }
  void use_table(step::Table table, step::BlockUse how) override;
  void release_table() noexcept override;
  [[nodiscard]] T rows_from_files(const T& table, const T& indices) override;
  [[nodiscard]] T new_gradients(step::UnitKey unit) override;
  [[nodiscard]] T complete_gradients(step::UnitKey unit) override;
  /// Inputs are offloaded apart from weights.
  void add_inputs(CountedLayers inputs);
  /// When a unit's gradients are complete, `bytes` of them are offloaded.
  void keep_own(step::UnitKey unit, Bytes bytes) { own_[unit] = bytes; }
  /// For ZeRO-3 weights: enqueues another collective of `seconds` after the started gathers.
  /// Returns when it ends.
  double begin_behind_gathers(double seconds);

 private:
  // A queued load. It is counted when its block is used, because a plan skips equal blocks and so
  // uses other blocks than a run would load next.
  struct Fetch {
    step::BlockWindow::Place place;
    double from = 0, gradients_from = 0;
  };
  void bring_expected();
  void queue(step::BlockWindow::Place place);
  void fetch_until(std::size_t block);
  void fetch(const Fetch& fetch);
  // For shards in host memory: this rank's bytes of a block.
  [[nodiscard]] Bytes own_bytes(std::size_t block) const;
  // Starts a load at `from` or later. For shards in host memory the gather follows a copy of `own`
  // bytes. Returns when it ends.
  double bring(double bytes, double from, Bytes own);
  void wait(double time);
  // For shards on disk: no further block is read.
  void end_reads();
  // All transfers have been waited for.
  void drain();
  [[nodiscard]] bool is_on_disk() const { return layers_.home == spec::Home::kDisk; }
  [[nodiscard]] Bytes turn_bytes(step::Table table) const;
  [[nodiscard]] spec::Dtype dtype() const { return ops_.dtype(step::any_weight(weights_)); }
  [[nodiscard]] T gradients_of(step::UnitKey unit) const;
  [[nodiscard]] double gradient_bytes(std::size_t block) const;
  // The gradient bytes of a unit (elements,) that are offloaded: all of them, or this rank's.
  [[nodiscard]] double leaving_bytes(step::UnitKey unit, bool complete) const;

  step::CountingOps& ops_;
  const step::Weights<T>& weights_;
  CountedLayers layers_;
  std::map<step::UnitKey, Bytes> own_;
  std::unique_ptr<CountedBlocks> inputs_;  // null: they are with the weights, or not offloaded
  double input_bytes_ = 0;                 // of a block and a group of micro-batches
  step::BlockWindow window_;
  step::BlockWindow::Use use_;
  std::int64_t passes_back_ = 0;  // backward passes per mini-batch
  // The current backward pass is the last one that adds to gradients.
  std::optional<bool> completes_;
  step::TableTurns turns_;
  step::TableTurns::Turn turn_;
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

/// Parts of an update on simulated clocks. Each has its states in one of step::kUpdateSlots
/// prefetch buffers (bridge/streamed_states.h).
class CountedParts {
 public:
  explicit CountedParts(step::CountingOps& ops) : ops_(ops), begin_(ops.now()) {
    worked_.fill(begin_);
  }
  CountedParts(const CountedParts&) = delete;
  CountedParts& operator=(const CountedParts&) = delete;
  ~CountedParts() {
    for (std::size_t i = 0; i < writes_.size(); ++i) write(next_ + i);
    ops_.wait_until(ops_.copied());
  }
  /// Bytes that are on disk.
  struct Disk {
    double read = 0, written = 0;
  };
  /// Runs step() with the next part loaded.
  template <class Step>
  void visit(double fetched, double stored, const Disk& disk, const Step& step) {
    double& left = stored_[next_ % stored_.size()];  // of the part that used the buffer before
    double read = begin_;
    if (disk.read > 0) {
      const double written = written_[next_ % written_.size()];
      read = ops_.begin_disk(step::Direction::kToDevice, disk.read,
                             std::max(written, worked_before(step::kPartsAhead)));
      write(next_);
    }
    // It was queued when the part before the last one had been updated.
    const double here = ops_.begin_copy(step::Direction::kToDevice, fetched,
                                        std::max({worked_before(0), left, read}));
    ops_.wait_until(std::max(here, left));
    step();
    worked_[next_ % worked_.size()] = ops_.now();
    left = ops_.begin_copy(step::Direction::kToHost, stored, ops_.now());
    writes_[next_ % writes_.size()] = {disk.written, left};
    ++next_;
  }

 private:
  struct Write {
    double bytes = 0, from = 0;
  };
  /// The time of the update before which the next part was queued, or the same `parts` earlier.
  [[nodiscard]] double worked_before(std::size_t parts) const {
    const std::size_t back = step::kUpdateSlots - 1 + parts;
    return next_ < back ? begin_ : worked_[(next_ - back) % worked_.size()];
  }
  /// Writes the part that is writes_.size() places before `part`. The parts in between are read
  /// first.
  void write(std::size_t part) {
    const Write leaving = std::exchange(writes_[part % writes_.size()], {});
    if (leaving.bytes > 0)
      written_[(part + written_.size() - writes_.size()) % written_.size()] =
          ops_.begin_disk(step::Direction::kToHost, leaving.bytes, leaving.from);
  }
  step::CountingOps& ops_;
  double begin_;
  std::array<double, step::kUpdateSlots> stored_{};
  std::array<double, step::kUpdateWindows> written_{}, worked_{};
  std::array<Write, step::kUpdateSlots> writes_{};
  std::size_t next_ = 0;
};

}  // namespace neap::plan

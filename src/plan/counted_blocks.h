// The blocks and tables of streamed or sliced weights in a plan: which of them the slots hold, what comes and goes, and
// when. What step/windowed_blocks.h does with those of bridge/streamed_blocks.h and train/sliced_weights.h, on clocks.
//
// Threads   one.
// Cost      below a microsecond a use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/tags.h"
#include "step/counting_ops.h"
#include "step/units.h"

namespace neap::plan {

/// What rests elsewhere: on the host, or slices of it on other ranks.
struct CountedRests {
  std::vector<PartPlan> blocks;  ///< weights
  HostedTables tables;
  std::optional<spec::Dtype> gradients;  ///< their type where the blocks are trained
  bool inputs = false;                   ///< of blocks
  bool on_disk = false;                  ///< blocks, with their gradients, or slices
  bool tables_in_files = false;
  bool each_once = false;  ///< a phase ends with each mini-batch
  // Of sliced weights, whose `tables` say only which turns there are:
  std::optional<spec::DataParallel> ranks{};
  std::array<Bytes, 2> turns{};  ///< what comes for each table's
  bool overlaps = false;         ///< it comes while passes compute
  // Where a rank's slice rests on the host, what of it comes before each block is gathered, and for each turn:
  std::vector<Bytes> own{};
  std::array<Bytes, 2> own_turns{};
};
/// Of a model whose weights ranks have slices of. `overlaps`: as of SlicedWeights, on GPUs.
[[nodiscard]] CountedRests sliced_rests(const ModelRole& role, spec::Dtype dtype, bool overlaps,
                                        bool on_host, bool on_disk);

class CountedBlocks final : public step::BlockSource<step::CountedTensor> {
  using T = step::CountedTensor;

 public:
  /// The first two outlive it.
  CountedBlocks(step::CountingOps& ops, const step::Weights<T>& weights, CountedRests rests);
  CountedBlocks(const CountedBlocks&) = delete;
  CountedBlocks& operator=(const CountedBlocks&) = delete;
  ~CountedBlocks() override { drain(); }

  void begin_mini_batch(std::int64_t passes_back) override;
  void expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override;
  /// A stage's pass back of a micro-batch of the mini-batch begins. A plan leaves out some that are alike.
  void begin_pass_back(std::int64_t micro_batch) { completes_ = micro_batch + 1 == passes_back_; }
  [[nodiscard]] bool uses_alike() const override;
  void begin_group(std::int64_t rows) override;
  [[nodiscard]] T inputs(std::int64_t first, std::int64_t count) override;
  [[nodiscard]] const step::Block<T>& use(std::size_t block, step::BlockUse how) override;
  void release(std::size_t block) noexcept override;
  [[nodiscard]] bool has_gradients() const override { return rests_.gradients.has_value(); }
  [[nodiscard]] bool has_turn(step::Table table, step::BlockUse how) const override {
    return rests_.tables.turns.takes(table, how);
  }
  void use_table(step::Table table, step::BlockUse how) override;
  void release_table() noexcept override;
  [[nodiscard]] T rows_from_files(const T& table, const T& indices) override;
  [[nodiscard]] T new_gradients(step::UnitKey unit) override;
  [[nodiscard]] T complete_gradients(step::UnitKey unit) override;
  /// Of a unit's gradients, where nothing more is added to them, so many bytes leave.
  void keep_own(step::UnitKey unit, Bytes bytes) { own_[unit] = bytes; }
  /// Of sliced weights: another collective of so many seconds, behind the gathers that were begun. When it has ended.
  double begin_behind_gathers(double seconds);

 private:
  // A fetch that was queued. It is counted when its block is used: a plan that leaves out blocks that are
  // alike uses others than those that would come next.
  struct Fetch {
    step::BlockWindow::Place place;
    double from = 0, gradients_from = 0;
  };
  void bring_expected();
  void queue(step::BlockWindow::Place place);
  void fetch_until(std::size_t block);
  void fetch(const Fetch& fetch);
  // Of slices on the host, what of this rank's comes for a block.
  [[nodiscard]] Bytes own_bytes(std::size_t block) const;
  // Begins at `from` or later, of slices on the host behind a copy of so many bytes. When it has ended.
  double bring(double bytes, double from, Bytes own);
  void wait(double time);
  // Of slices on disk: no block is read any more.
  void end_reads();
  // Everything was waited for.
  void drain();
  [[nodiscard]] Bytes turn_bytes(step::Table table) const;
  [[nodiscard]] spec::Dtype dtype() const { return ops_.dtype(step::any_weight(weights_)); }
  [[nodiscard]] T gradients_of(step::UnitKey unit) const;
  [[nodiscard]] double gradient_bytes(std::size_t block) const;
  // Of a unit's gradients (elements,), all or this rank's.
  [[nodiscard]] double leaving_bytes(step::UnitKey unit, bool complete) const;

  step::CountingOps& ops_;
  const step::Weights<T>& weights_;
  CountedRests rests_;
  std::map<step::UnitKey, Bytes> own_;
  double input_bytes_ = 0;  // of a block and a group
  step::BlockWindow window_;
  step::BlockWindow::Use use_;
  std::int64_t passes_back_ = 0;   // of the mini-batch
  std::optional<bool> completes_;  // the pass back: nothing is added to gradients behind it
  step::TableTurns turns_;
  step::TableTurns::Turn turn_;
  step::Table turn_table_ = step::Table::kHead;
  step::Sweep sweep_ = step::Sweep::kForward;
  std::int64_t passes_ = 0;
  spec::BlockChunk chunk_{};             // that they go through
  std::size_t position_ = 0, used_ = 0;  // of a forward sweep; the block in use
  std::deque<Fetch> queued_;
  // Times: of each slot its last copies, and what copies that are queued wait for.
  std::array<double, kBlockSlots> filled_{}, stored_{};
  std::array<double, kBlockSlots> written_{};  // of gradients on disk, from the slot's window
  double work_ = 0, last_stored_ = 0, held_ = 0;
  // Of slices on disk: when the last one had been read, how long work hid that, and whether that of the next block is
  // read from then on.
  double read_ = 0, hidden_ = 0;
  bool read_ahead_ = false;
  double gathered_ = 0,
         sent_ = 0;  // of sliced weights: when the last gather has ended; what no wait has counted
};

/// Parts of an update, each while its states are in one of step::kUpdateSlots slots
/// (bridge/streamed_states.h), on clocks.
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
  /// Of what comes and goes, bytes that rest there.
  struct Disk {
    double read = 0, written = 0;
  };
  /// The next part: step() while it is there.
  template <class Step>
  void visit(double fetched, double stored, const Disk& disk, const Step& step) {
    double& left = stored_[next_ % stored_.size()];  // of the part that was there before
    double read = begin_;
    if (disk.read > 0) {
      const double written = written_[next_ % written_.size()];
      read = ops_.begin_disk(step::Direction::kToDevice, disk.read,
                             std::max(written, worked_before(step::kPartsAhead)));
      write(next_);
    }
    // It was queued when the part before the last one had been stepped.
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
  /// When the part was stepped before which the next one was queued, or so many parts before that.
  [[nodiscard]] double worked_before(std::size_t parts) const {
    const std::size_t back = step::kUpdateSlots - 1 + parts;
    return next_ < back ? begin_ : worked_[(next_ - back) % worked_.size()];
  }
  /// Of the part that many before a part: those between are read before it is written.
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

// How passes get a block: from memory that holds the whole model, or from a source that has a few
// blocks on the device at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "spec/layout.h"
#include "step/block_window.h"
#include "step/table_turns.h"
#include "step/weights.h"

namespace neap::step {

/// Memory on the device for a few blocks of a model that rests elsewhere, and in training for their
/// gradients and inputs, which rest there, too.
///
/// Threads   one at a time.   Failure   Error.
class BlockSlots {
 public:
  virtual ~BlockSlots() = default;
  /// Of a mini-batch that goes through chunks action by action: so many passes back of each one add to gradients, none
  /// has yet.
  virtual void begin_mini_batch(std::int64_t passes_back) = 0;
  /// The passes that follow through a chunk, so that blocks come before they are used. Passes forward and back are those
  /// of a mini-batch, which they begin.
  virtual void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) = 0;
  /// Passes that other ranks have more than this one, which takes part in theirs.
  [[nodiscard]] virtual std::int64_t further_passes(std::int64_t) { return 0; }
  /// Inputs that are kept from now on take so many bytes, from the front of their slot's memory.
  virtual void set_input_bytes(std::int64_t bytes) = 0;
  struct Place {
    std::size_t slot = 0;
    bool zero =
        false;  ///< the slot's gradients are garbage: whoever adds to them sets them to zero
    bool last = false;  ///< nothing is added to the block's gradients after this use
  };
  /// The slot that holds the block for what the device is given next, until release(block).
  [[nodiscard]] virtual Place use(std::size_t block, BlockUse how) = 0;
  virtual void release(std::size_t block) noexcept = 0;

  /// Which tables come to the slots' memory.
  [[nodiscard]] virtual TableUnits tables() const = 0;
  /// A turn of one of them, from here to release_table(). No block is in use.
  [[nodiscard]] virtual TableTurns::Turn use_table(Table table, BlockUse how) = 0;
  virtual void release_table() noexcept = 0;

  /// Whether the embedding's rows are read from files.
  [[nodiscard]] virtual bool reads_rows() const { return false; }
  /// Such rows, of so many bytes each, one behind another. Blocks until they are there.
  virtual void read_rows(std::span<const std::int64_t>, Bytes, std::byte*) {}
};

/// A block by its number, or a table.
using UnitKey = std::int64_t;
constexpr UnitKey key_of(Table table) {
  return -1 - static_cast<UnitKey>(table);
}
inline UnitKey key_of(const spec::FlatUnit& unit) {
  if (unit.block >= 0) return unit.block;
  return key_of(unit.find(spec::Module::kTokenEmbedding) != nullptr ? Table::kEmbedding
                                                                    : Table::kHead);
}
/// The same of a rank's part of a model, as its passes count blocks.
inline UnitKey key_of(const spec::FlatUnit& unit, const spec::Architecture& shape) {
  return unit.block >= 0 ? shape.place_of_block(unit.block) : key_of(unit);
}

/// Norms of ranges of a unit's gradients (step/gradient_norm.h), where they were computed: reading them would make the
/// program wait for everything before, and what is given to the device next for copies that are under way.
template <class T>
struct RangeNorms {
  T values{};                     ///< (ranges,); undefined: there are none
  std::vector<bool> counts_here;  ///< false: another of the ranks that divide the model counts it

  /// Zero for what another rank counts.
  template <class Ops>
  [[nodiscard]] std::vector<double> read(Ops& ops) const {
    if (!values.defined()) return {};
    std::vector<double> out = ops.read_all(values);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (!counts_here[i]) out[i] = 0;
    return out;
  }
};

/// As BlockSlots, for passes, which take blocks bound to their slot's memory.
template <class T>
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// As BlockSlots::begin_mini_batch.
  virtual void begin_mini_batch(std::int64_t passes_back) = 0;
  virtual void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) = 0;
  /// As BlockSlots::further_passes.
  [[nodiscard]] virtual std::int64_t further_passes(std::int64_t) { return 0; }
  /// Whether every block of a pass forward comes as the one before it does: not where a pass may find some of them.
  [[nodiscard]] virtual bool uses_alike() const { return true; }
  /// Micro-batches of so many rows in all go through the blocks, and back.
  virtual void begin_group(std::int64_t rows) = 0;
  /// Of the block in use, where the inputs of the group's rows [first, first + count) are: (count, C).
  /// Undefined: they do not rest elsewhere.
  [[nodiscard]] virtual T inputs(std::int64_t first, std::int64_t count) = 0;
  [[nodiscard]] virtual const Block<T>& use(std::size_t block, BlockUse how) = 0;
  virtual void release(std::size_t block) noexcept = 0;
  /// Whether gradients of blocks come with them.
  [[nodiscard]] virtual bool has_gradients() const = 0;
  /// Whether a table comes to the slots' memory for its turn.
  [[nodiscard]] virtual bool has_turn(Table table, BlockUse how) const = 0;
  virtual void use_table(Table table, BlockUse how) = 0;
  virtual void release_table() noexcept = 0;
  /// The embedding (V, C) at indices (N,) -> (N, C), of one in files. Undefined: it is in host memory.
  [[nodiscard]] virtual T rows_from_files(const T&, const T&) { return T(); }
  /// Of what is used for its gradients: those that hold garbage and have to start at zero (elements,);
  /// undefined: none.
  [[nodiscard]] virtual T new_gradients(UnitKey unit) = 0;
  /// Of what is used for its gradients: all of them (elements,) where nothing is added after this use;
  /// undefined where something is, or it has none.
  [[nodiscard]] virtual T complete_gradients(UnitKey unit) = 0;

  /// Of complete gradients, in the phase's memory. A tied head's are the embedding's.
  void keep_norms(UnitKey unit, RangeNorms<T> norms) { taken_[unit] = std::move(norms); }
  /// Reads what was kept, once nothing more is added to gradients of the mini-batch.
  template <class Ops>
  void read_norms(Ops& ops) {
    for (const auto& [unit, norms] : std::exchange(taken_, {})) norms_[unit] = norms.read(ops);
  }
  /// Those that were read last.
  [[nodiscard]] const std::vector<double>& norms(UnitKey unit) const { return norms_.at(unit); }

 private:
  std::map<UnitKey, RangeNorms<T>> taken_;
  std::map<UnitKey, std::vector<double>> norms_;
};

/// Takes gradients from where backward adds them.
///
/// Threads   one at a time.   Failure   Error.
template <class T>
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// A mini-batch begins, in which so many groups of micro-batches add to each unit's gradients.
  virtual void begin_mini_batch(std::int64_t) {}
  /// One begins, after which gradients may leave at once. `last`: no later one of the mini-batch adds to gradients, but
  /// those of a tied table's rows may be added behind it (step/tied_rows.h).
  virtual void begin_group(bool) {}
  /// Gradients leave the units' memory with each group.
  [[nodiscard]] virtual bool takes_groups() const = 0;
  /// Those that hold garbage when the unit is used for its gradients, and start at zero: (elements,) each.
  [[nodiscard]] virtual std::vector<T> new_gradients(UnitKey unit) = 0;
  /// A group has added what it adds to the unit's. The embedding's come last.
  virtual void take(UnitKey unit) = 0;
  /// In place of the embedding's, where a group goes through neither an embedding nor a head.
  virtual void end_group() = 0;
  /// Of gradients that leave with each group, behind the last one: visit(gradients) with what this rank keeps of a tied
  /// table's (count,) that two stages have, if anything. They are complete then.
  virtual void complete_table(const std::function<void(const T&)>&) {}

  // ---- units whose gradients rest on the host ----
  /// One of them, and its elements that this rank keeps once the ranks' are added up.
  struct Leaving {
    const spec::FlatUnit* unit = nullptr;
    std::int64_t first = 0, count = 0;
  };
  /// Gradients that rest on the host never come here without it.
  [[nodiscard]] virtual Leaving leaving(UnitKey unit) const = 0;
  /// Adds up the ranks' gradients (elements,) of one, to which nothing more is added. What is computed next begins
  /// behind that.
  virtual void sum(UnitKey unit, const T& gradients) = 0;
};

/// Whether gradients are added up while backward goes on. Not where it has collectives of its own, among ranks that
/// divide the model or sequences, or transfers between stages: communicators of a GPU take turns.
template <class Ops>
[[nodiscard]] bool sums_overlap_backward(const Ops& ops, const spec::Architecture& shape) {
  return ops.ranks(spec::Axis::kTensor) == 1 && ops.ranks(spec::Axis::kContext) == 1 &&
         shape.pipeline.stages == 1;
}
/// The same of gathers of sliced weights while a pass computes. Those of copy engines take no turns with collectives of
/// ranks that divide the model, or transfers; ranks that divide sequences are themselves among those that gather.
[[nodiscard]] inline bool gathers_overlap_passes(const spec::Architecture& shape,
                                                 std::int64_t context_ranks, bool copy_engines) {
  const bool divided = shape.tensor.ranks > 1 || shape.pipeline.stages > 1;
  return context_ranks == 1 && (!divided || copy_engines);
}

/// As BlockSlots::begin_mini_batch.
template <class T>
void begin_mini_batch(const Weights<T>& w, std::int64_t passes_back) {
  if (w.source != nullptr) w.source->begin_mini_batch(passes_back);
}
template <class T>
void expect_passes(const Weights<T>& w, Sweep sweep, std::int64_t passes,
                   const spec::BlockChunk& chunk) {
  if (w.source != nullptr) w.source->expect(sweep, passes, chunk);
}
/// Through all blocks.
template <class T>
void expect_passes(const Weights<T>& w, Sweep sweep, std::int64_t passes) {
  expect_passes(w, sweep, passes, w.architecture.chunk(0));
}
/// Passes without a batch that a rank with `own` of them runs behind these: as BlockSlots::further_passes.
template <class T>
[[nodiscard]] std::int64_t further_passes(const Weights<T>& w, std::int64_t own) {
  return w.source != nullptr ? w.source->further_passes(own) : 0;
}

/// Of a backward in two parts, whether the second one brings blocks' gradients.
template <class T>
[[nodiscard]] bool brings_gradients(const Weights<T>& w) {
  return w.source != nullptr && w.source->has_gradients();
}
/// Whether gradients of blocks have memory only while they are added to.
template <class T>
[[nodiscard]] bool gradients_leave(const Weights<T>& w) {
  return brings_gradients(w) || (w.sink != nullptr && w.sink->takes_groups());
}

/// The gradients of what is used.
template <class T>
class UsedGradients {
 public:
  /// Null: it comes from no source, its gradients stay.
  UsedGradients(BlockSource<T>* source, GradientSink<T>* sink, UnitKey unit)
      : source_(source), sink_(sink), unit_(unit) {}
  /// Before a group adds to them.
  template <class Ops>
  void begin(Ops& ops) {
    if (source_ != nullptr) {
      const T gradients = source_->new_gradients(unit_);
      if (gradients.defined()) ops.zero_(gradients);
    }
    if (sink_ == nullptr) return;
    for (const T& gradients : sink_->new_gradients(unit_)) ops.zero_(gradients);
  }
  /// Behind it. complete(unit, gradients) for those of a source that are complete and leave: adds up the ranks', and
  /// takes norms (step/gradient_norm.h).
  template <class Complete>
  void end(const Complete& complete) {
    if (sink_ != nullptr) sink_->take(unit_);
    if (source_ == nullptr) return;
    const T gradients = source_->complete_gradients(unit_);
    if (gradients.defined()) source_->keep_norms(unit_, complete(unit_, gradients));
  }

 private:
  BlockSource<T>* source_;
  GradientSink<T>* sink_;
  UnitKey unit_;
};

/// A block of a model while its weights, or its gradients alone, are on the device.
template <class T>
class UsedBlock {
 public:
  UsedBlock(const Weights<T>& w, std::size_t i, BlockUse how = BlockUse::kRead)
      : source_(how != BlockUse::kAddLater || brings_gradients(w) ? w.source : nullptr),
        sink_(w.sink),
        index_(i),
        block_(source_ ? source_->use(i, how) : w.blocks[i]) {}
  UsedBlock(const UsedBlock&) = delete;
  UsedBlock& operator=(const UsedBlock&) = delete;
  ~UsedBlock() {
    if (source_ != nullptr) source_->release(index_);
  }
  [[nodiscard]] const Block<T>& operator*() const { return block_; }
  [[nodiscard]] UsedGradients<T> gradients() const {
    return {source_, sink_, static_cast<UnitKey>(index_)};
  }
  /// As BlockSource::inputs.
  [[nodiscard]] T inputs(std::int64_t first, std::int64_t count) const {
    return source_ != nullptr ? source_->inputs(first, count) : T();
  }

 private:
  BlockSource<T>* source_;
  GradientSink<T>* sink_;
  std::size_t index_;
  const Block<T>& block_;
};

/// A table of a model while it is on the device.
template <class T>
class UsedTable {
 public:
  UsedTable(const Weights<T>& w, Table table, BlockUse how = BlockUse::kRead)
      : source_(w.source != nullptr && w.source->has_turn(table, how) ? w.source : nullptr),
        sink_(w.sink),
        table_(table) {
    if (source_ != nullptr) source_->use_table(table, how);
  }
  UsedTable(const UsedTable&) = delete;
  UsedTable& operator=(const UsedTable&) = delete;
  ~UsedTable() {
    if (source_ != nullptr) source_->release_table();
  }
  [[nodiscard]] UsedGradients<T> gradients() const { return {source_, sink_, key_of(table_)}; }

 private:
  BlockSource<T>* source_;
  GradientSink<T>* sink_;
  Table table_;
};

}  // namespace neap::step

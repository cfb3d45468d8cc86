// Access of passes to blocks: from memory that holds the whole model, or from a source that has a
// few blocks on the device at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "spec/model/layout.h"
#include "step/operations/weights.h"
#include "step/units/block_window.h"
#include "step/units/table_turns.h"

namespace neap::step {

/// Device memory for a few blocks of an offloaded or sharded model, and in training for their
/// gradients and inputs.
///
/// Threads   one at a time.
/// Failure   Error.
class BlockSlots {
 public:
  virtual ~BlockSlots() = default;
  /// Starts a mini-batch that passes through chunks action by action. `passes_back` backward passes
  /// per chunk add to gradients, which do not exist yet.
  virtual void begin_mini_batch(std::int64_t passes_back) = 0;
  /// Announces the next passes through a chunk, so that blocks are loaded before their use. Passes
  /// of kForwardBackward are those of one mini-batch, and start it.
  virtual void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) = 0;
  /// The number of passes that other ranks run in addition to this rank's; this rank must join
  /// them.
  [[nodiscard]] virtual std::int64_t further_passes(std::int64_t) { return 0; }
  /// Sets the bytes of inputs that are kept from now on, at the start of their slot's memory.
  virtual void set_input_bytes(std::int64_t bytes) = 0;
  struct Place {
    std::size_t slot = 0;
    bool zero = false;  ///< the slot's gradients are garbage: the first user must zero them
    bool last = false;  ///< no later use adds to the block's gradients
  };
  /// The slot that holds the block for later work of the device, until release(block).
  [[nodiscard]] virtual Place use(std::size_t block, BlockUse how) = 0;
  virtual void release(std::size_t block) noexcept = 0;

  /// The tables that share the slots' memory.
  [[nodiscard]] virtual TableUnits tables() const = 0;
  /// A turn of a table, until release_table(). No block may be in use.
  [[nodiscard]] virtual TableTurns::Turn use_table(Table table, BlockUse how) = 0;
  virtual void release_table() noexcept = 0;

  /// Whether the embedding's rows are read from files.
  [[nodiscard]] virtual bool reads_rows() const { return false; }
  /// Reads such rows, of `width` bytes each, one after another. Blocks until they are read.
  virtual void read_rows(std::span<const std::int64_t>, Bytes, std::byte*) {}
};

/// A block's number, or a table.
using UnitKey = std::int64_t;
constexpr UnitKey key_of(Table table) {
  return -1 - static_cast<UnitKey>(table);
}
inline UnitKey key_of(const spec::FlatUnit& unit) {
  if (unit.block >= 0) return unit.block;
  return key_of(unit.find(spec::Module::kTokenEmbedding) != nullptr ? Table::kEmbedding
                                                                    : Table::kHead);
}
/// As key_of(unit), for a rank's part of a model, where passes number blocks within that part.
inline UnitKey key_of(const spec::FlatUnit& unit, const spec::Architecture& shape) {
  return unit.block >= 0 ? shape.place_of_block(unit.block) : key_of(unit);
}

/// Norms of ranges of a unit's gradients (step/units/gradient_norm.h), kept on the device. Reading them
/// back at once would block the host until earlier work and running copies are done.
template <class T>
struct RangeNorms {
  T values{};                     ///< (ranges,); undefined: there are none
  std::vector<bool> counts_here;  ///< false: another rank of the tensor-parallel group counts it

  /// Values are zero if another rank counts them.
  template <class Ops>
  [[nodiscard]] std::vector<double> read(Ops& ops) const {
    if (!values.defined()) return {};
    std::vector<double> out = ops.read_all(values);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (!counts_here[i]) out[i] = 0;
    return out;
  }
};

/// As BlockSlots, for passes: it returns blocks that are bound to their slot's memory.
template <class T>
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// As BlockSlots::begin_mini_batch.
  virtual void begin_mini_batch(std::int64_t passes_back) = 0;
  virtual void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) = 0;
  /// As BlockSlots::further_passes.
  [[nodiscard]] virtual std::int64_t further_passes(std::int64_t) { return 0; }
  /// Whether loading every block of a forward costs the same. It does not if a pass may find some
  /// of them already loaded.
  [[nodiscard]] virtual bool uses_alike() const { return true; }
  /// Starts a group of micro-batches with `rows` rows in total, which pass through the blocks
  /// forward and back.
  virtual void begin_group(std::int64_t rows) = 0;
  /// Where the block in use keeps the inputs of the group's rows [first, first + count): (count,
  /// C). Undefined: inputs are not offloaded.
  [[nodiscard]] virtual T inputs(std::int64_t first, std::int64_t count) = 0;
  [[nodiscard]] virtual const Block<T>& use(std::size_t block, BlockUse how) = 0;
  virtual void release(std::size_t block) noexcept = 0;
  /// Whether gradients of blocks are loaded with them.
  [[nodiscard]] virtual bool has_gradients() const = 0;
  /// Whether a table is loaded into the slots' memory for this use.
  [[nodiscard]] virtual bool has_turn(Table table, BlockUse how) const = 0;
  virtual void use_table(Table table, BlockUse how) = 0;
  virtual void release_table() noexcept = 0;
  /// For an embedding in files: (V, C) at indices (N,) -> (N, C). Undefined: it is in host memory.
  [[nodiscard]] virtual T rows_from_files(const T&, const T&) { return T(); }
  /// Gradients of the unit in use that contain garbage and must be zeroed (elements,); undefined:
  /// none.
  [[nodiscard]] virtual T new_gradients(UnitKey unit) = 0;
  /// The gradients of the unit in use (elements,), if no later use adds to them. Otherwise
  /// undefined, also if it has none.
  [[nodiscard]] virtual T complete_gradients(UnitKey unit) = 0;

  /// Norms of complete gradients, in the phase's memory. A tied head's are the embedding's.
  void keep_norms(UnitKey unit, RangeNorms<T> norms) { taken_[unit] = std::move(norms); }
  /// Reads the kept norms, once all gradients of the mini-batch are complete.
  template <class Ops>
  void read_norms(Ops& ops) {
    for (const auto& [unit, norms] : std::exchange(taken_, {})) norms_[unit] = norms.read(ops);
  }
  /// The norms that were read last.
  [[nodiscard]] const std::vector<double>& norms(UnitKey unit) const { return norms_.at(unit); }

 private:
  std::map<UnitKey, RangeNorms<T>> taken_;
  std::map<UnitKey, std::vector<double>> norms_;
};

/// Receives gradients after backward has added them.
///
/// Threads   one at a time.
/// Failure   Error.
template <class T>
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Starts a mini-batch. Its argument is the number of groups of micro-batches that add to each
  /// unit's gradients.
  virtual void begin_mini_batch(std::int64_t) {}
  /// Starts a group. Afterwards, gradients may be passed on immediately. `last`: no later group of
  /// the mini-batch adds to gradients. Gradients of a tied embedding's rows may still be added
  /// (step/model/tied_rows.h).
  virtual void begin_group(bool) {}
  /// Whether gradients are reduced with each group, so that units share memory.
  [[nodiscard]] virtual bool takes_groups() const = 0;
  /// The gradients of a unit that contain garbage and must be zeroed before its first use:
  /// (elements,) each.
  [[nodiscard]] virtual std::vector<T> new_gradients(UnitKey unit) = 0;
  /// A group has added all of its gradients of the unit. The embedding comes last.
  virtual void take(UnitKey unit) = 0;
  /// Replaces the embedding's take(), if a group passes through neither an embedding nor a head.
  virtual void end_group() = 0;
  /// For gradients that are reduced with each group: completes a tied embedding that two stages
  /// have, after the last group. Calls visit(gradients) with this rank's part (count,), if any.
  virtual void complete_table(const std::function<void(const T&)>&) {}

  // ---- units with offloaded gradients ----
  /// Such a unit, and the elements that this rank keeps after the reduction.
  struct Leaving {
    const spec::FlatUnit* unit = nullptr;
    std::int64_t first = 0, count = 0;
  };
  /// Must be called before offloaded gradients are reduced.
  [[nodiscard]] virtual Leaving leaving(UnitKey unit) const = 0;
  /// Reduces complete gradients (elements,) of such a unit over ranks. Later computation waits for
  /// it.
  virtual void sum(UnitKey unit, const T& gradients) = 0;
};

/// Whether reductions overlap with backward. They do not if backward has collectives of its own
/// (tensor or context parallelism) or transfers between stages, because communicators of a GPU must
/// take turns.
template <class Ops>
[[nodiscard]] bool sums_overlap_backward(const Ops& ops, const spec::Architecture& shape) {
  return ops.ranks(spec::Axis::kTensor) == 1 && ops.ranks(spec::Axis::kContext) == 1 &&
         shape.pipeline.stages == 1;
}
/// Whether gathers of ZeRO-3 weights overlap with passes. Copy engines need not take turns with
/// tensor-parallel collectives or transfers. Context-parallel ranks are themselves among the ranks
/// that gather.
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
/// For all blocks.
template <class T>
void expect_passes(const Weights<T>& w, Sweep sweep, std::int64_t passes) {
  expect_passes(w, sweep, passes, w.architecture.chunk(0));
}
/// As BlockSlots::further_passes: the number of passes without a batch after this rank's `own`
/// passes.
template <class T>
[[nodiscard]] std::int64_t further_passes(const Weights<T>& w, std::int64_t own) {
  return w.source != nullptr ? w.source->further_passes(own) : 0;
}

/// Whether the second part of a backward loads the blocks' gradients.
template <class T>
[[nodiscard]] bool brings_gradients(const Weights<T>& w) {
  return w.source != nullptr && w.source->has_gradients();
}
/// Whether gradients of blocks have memory only while they are added to.
template <class T>
[[nodiscard]] bool gradients_leave(const Weights<T>& w) {
  return brings_gradients(w) || (w.sink != nullptr && w.sink->takes_groups());
}

/// Gradients of a unit during its use.
template <class T>
class UsedGradients {
 public:
  /// `source` is null if the unit is not loaded; then its gradients stay in place.
  UsedGradients(BlockSource<T>* source, GradientSink<T>* sink, UnitKey unit)
      : source_(source), sink_(sink), unit_(unit) {}
  /// Call it before a group adds to them.
  template <class Ops>
  void begin(Ops& ops) {
    if (source_ != nullptr) {
      const T gradients = source_->new_gradients(unit_);
      if (gradients.defined()) ops.zero_(gradients);
    }
    if (sink_ == nullptr) return;
    for (const T& gradients : sink_->new_gradients(unit_)) ops.zero_(gradients);
  }
  /// Call it after that. complete(unit, gradients) is called for loaded gradients that are complete
  /// and will be offloaded: it reduces them over ranks and computes norms (step/units/gradient_norm.h).
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

/// A block of a model while its weights, or only its gradients, are on the device.
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

// Decides which blocks of a model are in which prefetch buffers ("slots"), from the order in which
// passes use them.
//
// A slot holds one block, and in training its gradients and inputs. A block that will be used soon
// is loaded while others compute. It replaces a block that is used later than those, or never.
// Gradients of a mini-batch start at zero. They are copied to the host after each pass and loaded
// again for the next. Block i uses slot i mod n if it is free, so a block gets the same slot in
// every pass of a stage. Inputs are kept in a slot during the forward, then copied to the host and
// loaded again for the backward. Several forwards may wait for their backwards, which have the same
// order.
//
// Threads   one at a time.
// Cost      a few comparisons per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "spec/model/architecture.h"

namespace neap::step {

/// The order in which a pass goes through blocks 0 .. n - 1, or those of a chunk. A pipeline stage
/// announces each forward and backward separately.
enum class Sweep : std::uint8_t {
  kForward,          ///< from 0 to n - 1
  kForwardBackward,  ///< from 0 to n - 1, then back
  kBackward,         ///< from n - 1 to 0
  // Parts of a backward in two parts, each from n - 1 to 0:
  kBackwardInput,
  kBackwardWeights,
};

/// How a pass uses a block.
enum class BlockUse : std::uint8_t {
  kRead,          ///< reads its weights
  kKeepInputs,    ///< reads its weights, and keeps its inputs for a backward
  kAddGradients,  ///< in a backward: reads its weights, and adds to its gradients if it has any
  kReadBack,      ///< first part of a backward: reads its weights, and adds no gradients
  kAddLater,      ///< second part of a backward: adds to its gradients, without reading weights
};

/// Data that are loaded with a block in addition to its weights.
struct WithBlocks {
  bool gradients = false;  ///< gradients of trained blocks
  bool inputs = false;     ///< inputs of a group of micro-batches (step/training/training.h)
};

/// Moments at which the memory of all slots is used for a table. The caller then calls clear().
struct Breaks {
  bool at_start = false;  ///< before the first block of an expected forward
  /// After the last block of a forward, and before it in a separate backward.
  bool after_forward = false;
  bool after_backward = false;  ///< after the first block of a backward
};

class BlockWindow {
 public:
  /// Data to load into a slot.
  struct Place {
    std::size_t block = 0, slot = 0;
    bool weights = true, gradients = false, inputs = false;
    std::int64_t pass = 0;  ///< of the inputs: passes of the mini-batch before it
    [[nodiscard]] bool any() const { return weights || gradients || inputs; }
  };

  /// `slots` is at least two.
  BlockWindow(std::size_t blocks, std::size_t slots, WithBlocks with = {}, Breaks breaks = {});

  /// Starts a mini-batch in which `passes_back` backward passes add to the gradients of each block
  /// of a chunk. No block has gradients yet.
  void begin_mini_batch(std::int64_t passes_back);
  /// Announces the next passes over a chunk's blocks, and drops earlier announcements. Passes of
  /// kForwardBackward are those of one mini-batch, and start it.
  void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk);
  /// For all blocks.
  void expect(Sweep sweep, std::int64_t passes) {
    expect(sweep, passes, {{0, static_cast<std::int64_t>(added_.size())}});
  }
  /// The next data to load, into a free slot; they count as present from then on. nullopt: nothing
  /// to load.
  [[nodiscard]] std::optional<Place> next_to_bring();
  /// The block whose weights will be loaded next, once a slot is free. nullopt: none is announced
  /// before the slots' memory is used for a table.
  [[nodiscard]] std::optional<std::size_t> brought_then() const;

  struct Use {
    Place missing;      ///< what must be loaded first
    bool zero = false;  ///< the gradients start at zero
    bool last = false;  ///< no later use adds to the gradients
  };
  /// Keeps the slot until release(block). A block that was not announced cancels the announcement.
  [[nodiscard]] Use use(std::size_t block, BlockUse how = BlockUse::kRead);
  /// Data to copy to the host: gradients that changed, inputs that were kept.
  struct Leaving {
    std::size_t slot = 0;
    bool gradients = false, inputs = false;
    bool complete = false;  ///< the gradients are complete
    std::int64_t pass = 0;  ///< as Place::pass
    [[nodiscard]] bool any() const { return gradients || inputs; }
  };
  Leaving release(std::size_t block);
  /// Marks the contents of all slots as lost. No slot may be in use.
  void clear();
  /// Also drops the announced uses.
  void forget();

 private:
  struct Slot {
    std::optional<std::size_t> block;
    bool weights = false, gradients = false, inputs = false;  // present data of the block
    bool used = false, adds = false, completes = false, keeps = false, reads = false;
    std::int64_t last_use = 0, pass = 0;  // the pass of the inputs
  };
  struct Expected {
    std::size_t block = 0;
    BlockUse how = BlockUse::kRead;
  };
  [[nodiscard]] Expected expected_at(std::int64_t place) const;
  [[nodiscard]] bool starts_forward() const {
    return sweep_ == Sweep::kForward || sweep_ == Sweep::kForwardBackward;
  }
  /// Before the first of the announced uses.
  [[nodiscard]] bool breaks_at_start() const {
    return starts_forward() ? breaks_.at_start : breaks_.after_forward;
  }
  /// Whether no block may be loaded for uses after this one yet.
  [[nodiscard]] bool is_break(std::int64_t place) const;
  /// As many different blocks as there are slots: those in use, then those used next.
  [[nodiscard]] std::vector<std::size_t> soon() const;
  [[nodiscard]] BlockUse next_use(std::size_t block) const;
  /// Whether a slot, which may be null, has the inputs for the block's next backward.
  [[nodiscard]] bool has_inputs(std::size_t block, const Slot* slot) const;
  /// The data that the next use of a block needs and that `slot`, which may be null, does not have.
  [[nodiscard]] Place lacking(std::size_t block, const Slot* slot) const;
  [[nodiscard]] Slot* holder_of(std::size_t block);
  /// A slot that is not in use and holds none of `keep`: slot i mod n of the block, or else the
  /// least recently used one. Null: none.
  [[nodiscard]] Slot* free_slot(const std::vector<std::size_t>& keep,
                                std::optional<std::size_t> block = {});
  void put(Slot& slot, std::size_t block);

  std::size_t first_ = 0, blocks_;  // the announced blocks
  std::vector<Slot> slots_;
  WithBlocks with_;
  // all_breaks_ are as configured; breaks_ apply to the announced blocks
  Breaks all_breaks_, breaks_;
  std::int64_t cleared_at_ = 0;  // position of the last clear()
  // Per block: backward passes of the mini-batch that have added to its gradients.
  std::vector<std::int64_t> added_;
  // Per block: forwards of the mini-batch that have kept inputs, and backwards that have read them.
  std::vector<std::int64_t> kept_, read_;
  std::int64_t passes_back_ = 0;  // per mini-batch
  Sweep sweep_ = Sweep::kForward;
  std::int64_t next_ = 0, end_ = 0;  // of the announced uses
  std::int64_t uses_ = 0;
};

}  // namespace neap::step

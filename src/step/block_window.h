// Which blocks of a model are in the slots of a few, by the order in which passes use them.
//
// A slot holds one block, and in training its gradients and inputs. A block that will be used soon is brought
// while others compute; the slot that it takes holds a block which is used later than any of those, or never.
// Gradients of a mini-batch start at zero, leave their slot after each pass and come back with the next.
// A block that is expected takes the slot of its number, modulo theirs, where that is free: so where each pass of a stage is expected for
// itself, it has the same one in all of them.
// Inputs are kept in a slot on the way forward, leave it and come back for the way back.
//
// Threads   one at a time.
// Cost      a few comparisons a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "spec/architecture.h"

namespace neap::step {

/// How a pass goes through blocks 0 .. n - 1, or those of a chunk. A stage of a pipeline expects each forward and backward
/// for itself.
enum class Sweep : std::uint8_t {
  kForward,          ///< from 0 to n - 1
  kForwardBackward,  ///< and back
  kBackward,         ///< from n - 1 to 0
  // Of a backward in two parts, each from n - 1 to 0:
  kBackwardInput,
  kBackwardWeights,
};

/// What a pass does with a block.
enum class BlockUse : std::uint8_t {
  kRead,          ///< its weights
  kKeepInputs,    ///< the same, and its inputs are kept for a backward
  kAddGradients,  ///< in a backward, to gradients if the block has any
  kReadBack,      ///< its weights, in a backward whose second part adds to its gradients
  kAddLater,      ///< to its gradients, in that second part, which reads no weights
};

/// What comes and goes with a block besides its weights.
struct WithBlocks {
  bool gradients = false;  ///< the blocks are trained
  bool inputs = false;     ///< those of a group of micro-batches (step/training.h)
};

/// Where the memory of all slots is used for something else, which is when clear() is called.
struct Breaks {
  bool at_start = false;  ///< before the first block of a pass forward that is expected
  bool after_forward =
      false;  ///< behind the last block, and before it where a pass back is expected alone
  bool after_backward = false;  ///< behind the first one
};

class BlockWindow {
 public:
  /// What has to be brought to a slot.
  struct Place {
    std::size_t block = 0, slot = 0;
    bool weights = true, gradients = false, inputs = false;
    [[nodiscard]] bool any() const { return weights || gradients || inputs; }
  };

  /// At least two slots.
  BlockWindow(std::size_t blocks, std::size_t slots, WithBlocks with = {}, Breaks breaks = {});

  /// No block has gradients yet; so many passes back of its chunk add to each one's.
  void begin_mini_batch(std::int64_t passes_back);
  /// The uses that follow, of a chunk's blocks. Earlier expectations are dropped. Passes forward and back are those of a
  /// mini-batch, which they begin.
  void expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk);
  /// Of all blocks.
  void expect(Sweep sweep, std::int64_t passes) {
    expect(sweep, passes, {{0, static_cast<std::int64_t>(added_.size())}});
  }
  /// What should be brought now, to a slot that nobody uses for it; it counts as being there. nullopt:
  /// nothing.
  [[nodiscard]] std::optional<Place> next_to_bring();
  /// The block whose weights are brought after those that are there, once a slot is free. nullopt: none is expected, or
  /// not before the memory of all slots is used for something else.
  [[nodiscard]] std::optional<std::size_t> brought_then() const;

  struct Use {
    Place missing;      ///< what has to be brought first, if anything
    bool zero = false;  ///< the gradients start at zero
    bool last = false;  ///< nothing is added to them after this use
  };
  /// Until release(block) its slot is kept. One that was not expected ends the expectation.
  [[nodiscard]] Use use(std::size_t block, BlockUse how = BlockUse::kRead);
  /// What leaves the slot: gradients that were added to, inputs that were kept.
  struct Leaving {
    std::size_t slot = 0;
    bool gradients = false, inputs = false;
    bool complete = false;  ///< nothing is added to the gradients any more
    [[nodiscard]] bool any() const { return gradients || inputs; }
  };
  Leaving release(std::size_t block);
  /// What is in the slots is lost. Nothing is in use.
  void clear();
  /// So are the expected uses.
  void forget();

 private:
  struct Slot {
    std::optional<std::size_t> block;
    bool weights = false, gradients = false, inputs = false;  // the block's
    bool used = false, adds = false, completes = false, keeps = false;
    std::int64_t last_use = 0;
  };
  struct Expected {
    std::size_t block = 0;
    BlockUse how = BlockUse::kRead;
  };
  [[nodiscard]] Expected expected_at(std::int64_t place) const;
  [[nodiscard]] bool starts_forward() const {
    return sweep_ == Sweep::kForward || sweep_ == Sweep::kForwardBackward;
  }
  /// Before the first of the expected uses.
  [[nodiscard]] bool breaks_at_start() const {
    return starts_forward() ? breaks_.at_start : breaks_.after_forward;
  }
  /// A use behind which no block is brought yet.
  [[nodiscard]] bool is_break(std::int64_t place) const;
  /// As many different blocks as there are slots: those in use, then those that are used next.
  [[nodiscard]] std::vector<std::size_t> soon() const;
  /// The next use of a block adds to its gradients.
  [[nodiscard]] bool adds_next(std::size_t block) const;
  /// What the next use of a block needs that its slot, or none, does not have.
  [[nodiscard]] Place lacking(std::size_t block, const Slot* slot) const;
  [[nodiscard]] Slot* holder_of(std::size_t block);
  /// Unused, and holding none of `keep`: that of a block's number, or else the one that was used longest ago. Null: none.
  [[nodiscard]] Slot* free_slot(const std::vector<std::size_t>& keep,
                                std::optional<std::size_t> block = {});
  void put(Slot& slot, std::size_t block);

  std::size_t first_ = 0, blocks_;  // that are expected
  std::vector<Slot> slots_;
  WithBlocks with_;
  Breaks all_breaks_, breaks_;   // those of the blocks that are expected
  std::int64_t cleared_at_ = 0;  // place of the last clear()
  std::vector<std::int64_t>
      added_;  // by block: passes back of the mini-batch that have added to its gradients
  std::int64_t passes_back_ = 0;  // of the mini-batch
  Sweep sweep_ = Sweep::kForward;
  std::int64_t next_ = 0, end_ = 0;  // of the expected uses
  std::int64_t uses_ = 0;
};

}  // namespace neap::step

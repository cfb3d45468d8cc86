// Which blocks of a model are in the slots of a few, by the order in which passes use them.
//
// A slot holds one block, and in training its gradients. A block that will be used soon is brought while
// others compute; the slot that it takes holds a block which is used later than any of those, or never.
// Gradients of a mini-batch start at zero, leave their slot after each pass and come back with the next.
//
// Threads   one at a time.
// Cost      a few comparisons a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace neap::step {

/// How a pass goes through blocks 0 .. n - 1.
enum class Sweep : std::uint8_t {
  kForward,          ///< from 0 to n - 1
  kForwardBackward,  ///< and back
};

/// What a pass does with a block.
enum class BlockUse : std::uint8_t {
  kRead,          ///< its weights
  kAddGradients,  ///< in a backward, to gradients if the block has any
};

/// Where the memory of all slots is used for something else, which is when clear() is called.
struct Breaks {
  bool after_forward = false;   ///< behind the last block
  bool after_backward = false;  ///< behind the first one
};

class BlockWindow {
 public:
  /// What has to be brought to a slot.
  struct Place {
    std::size_t block = 0, slot = 0;
    bool weights = true, gradients = false;
  };

  /// At least two slots. `trained`: blocks have gradients.
  BlockWindow(std::size_t blocks, std::size_t slots, bool trained = false, Breaks breaks = {});

  /// The uses that follow. Earlier expectations are dropped. Passes forward and back are those of a
  /// mini-batch: no block has gradients yet.
  void expect(Sweep sweep, std::int64_t passes);
  /// What should be brought now, to a slot that nobody uses for it; it counts as being there. nullopt:
  /// nothing.
  [[nodiscard]] std::optional<Place> next_to_bring();

  struct Use {
    std::size_t slot = 0;
    bool weights = false, gradients = false;  ///< these have to be brought first
    bool zero = false;                        ///< the gradients start at zero
    bool last = false;                        ///< nothing is added to them after this use
    [[nodiscard]] bool missing() const { return weights || gradients; }
  };
  /// Until release(block) its slot is kept. One that was not expected ends the expectation.
  [[nodiscard]] Use use(std::size_t block, BlockUse how = BlockUse::kRead);
  /// Gradients that were added to leave the slot: this one, where there are such.
  std::optional<std::size_t> release(std::size_t block);
  /// What is in the slots is lost. Nothing is in use.
  void clear();
  /// So are the expected uses.
  void forget();

 private:
  struct Slot {
    std::optional<std::size_t> block;
    bool gradients = false;  // the block's
    bool used = false, adds = false;
    std::int64_t last_use = 0;
  };
  struct Expected {
    std::size_t block = 0;
    BlockUse how = BlockUse::kRead;
  };
  [[nodiscard]] Expected expected_at(std::int64_t place) const;
  /// A use behind which no block is brought yet.
  [[nodiscard]] bool is_break(std::int64_t place) const;
  /// As many different blocks as there are slots: those in use, then those that are used next.
  [[nodiscard]] std::vector<std::size_t> soon() const;
  /// The next use of a block adds to gradients that are not zero.
  [[nodiscard]] bool needs_gradients(std::size_t block) const;
  [[nodiscard]] Slot* holder_of(std::size_t block);
  /// Unused, and holding none of `keep`; of several the one that was used longest ago. Null: none.
  [[nodiscard]] Slot* free_slot(const std::vector<std::size_t>& keep);
  void put(Slot& slot, std::size_t block);

  std::size_t blocks_;
  std::vector<Slot> slots_;
  bool trained_;
  Breaks breaks_;
  std::int64_t cleared_at_ = 0;  // place of the last clear()
  std::vector<bool> started_;    // by block: gradients of the mini-batch exist
  Sweep sweep_ = Sweep::kForward;
  std::int64_t next_ = 0, end_ = 0;  // of the expected uses
  std::int64_t uses_ = 0;
};

}  // namespace neap::step

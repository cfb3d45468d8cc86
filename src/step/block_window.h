// Which blocks of a model are in the slots of a few, by the order in which passes use them.
//
// A slot holds one block. A block that will be used soon is brought while others compute; the slot
// that it takes holds a block which is used later than any of those, or never.
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

class BlockWindow {
 public:
  struct Place {
    std::size_t block = 0, slot = 0;
  };

  /// At least two slots.
  BlockWindow(std::size_t blocks, std::size_t slots);

  /// The uses that follow. Earlier expectations are dropped.
  void expect(Sweep sweep, std::int64_t passes);
  /// A block that should be brought now, to a slot that nobody uses; it counts as being there. nullopt: none.
  [[nodiscard]] std::optional<Place> next_to_bring();

  struct Use {
    std::size_t slot = 0;
    bool missing = false;  ///< it has to be brought first
  };
  /// Until release(block) its slot is kept. One that was not expected ends the expectation.
  [[nodiscard]] Use use(std::size_t block);
  void release(std::size_t block);
  /// What is in the slots is lost. Nothing is in use.
  void forget();

 private:
  struct Slot {
    std::optional<std::size_t> block;
    bool used = false;
    std::int64_t last_use = 0;
  };
  [[nodiscard]] std::size_t expected_at(std::int64_t place) const;
  /// As many different blocks as there are slots: those in use, then those that are used next.
  [[nodiscard]] std::vector<std::size_t> soon() const;
  [[nodiscard]] Slot* holder_of(std::size_t block);
  /// Unused, and holding none of `keep`; of several the one that was used longest ago. Null: none.
  [[nodiscard]] Slot* free_slot(const std::vector<std::size_t>& keep);

  std::size_t blocks_;
  std::vector<Slot> slots_;
  Sweep sweep_ = Sweep::kForward;
  std::int64_t next_ = 0, end_ = 0;  // of the expected uses
  std::int64_t uses_ = 0;
};

}  // namespace neap::step

// Embedding and head that share the memory of the blocks' prefetch buffers. They are loaded for a
// turn in which no block is in use, and their gradients are copied back after it.
//
// Threads   one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "step/units/block_window.h"

namespace neap::step {

/// The purpose of a turn.
enum class Table : std::uint8_t {
  kEmbedding,  ///< its rows, if they are not read elsewhere, or its gradients
  kHead,       ///< its matrix and, in training, its gradients
};
constexpr std::size_t index_of(Table table) {
  return static_cast<std::size_t>(table);
}

/// The number of the unit that each turn loads; a tied head loads the embedding. nullopt: it stays
/// on the device.
struct TableUnits {
  std::optional<std::size_t> embedding, head;
  /// A pass starts with a turn of the embedding, because its rows cannot be read from where it is
  /// stored.
  bool reads_embedding = false;
  /// A pass ends with such a turn, because its backward recomputes the input of its norm or
  /// projection.
  bool reads_it_again = false;
  [[nodiscard]] bool takes(Table table, BlockUse how) const {
    if (!of(table)) return false;
    if (table == Table::kHead) return true;
    return how == BlockUse::kAddGradients ? !reads_embedding || reads_it_again : reads_embedding;
  }
  [[nodiscard]] std::optional<std::size_t> of(Table table) const {
    return table == Table::kEmbedding ? embedding : head;
  }
  [[nodiscard]] bool any() const { return embedding || head; }
  [[nodiscard]] bool tied() const { return embedding && embedding == head; }
  /// A head's turn is between forward and backward, an embedding's after both. That of a tied
  /// embedding is only after the last pass (step/model/tied_rows.h).
  [[nodiscard]] Breaks breaks() const {
    return {reads_embedding, head.has_value(), embedding.has_value() && !tied()};
  }
};

class TableTurns {
 public:
  /// `trained`: the units have gradients.
  TableTurns(const TableUnits& units, bool trained) : units_(units), trained_(trained) {}

  /// As BlockWindow::begin_mini_batch.
  void begin_mini_batch(std::int64_t passes_back) {
    started_ = {};
    turns_ = {};
    passes_ = passes_back;
  }
  void expect(Sweep sweep, std::int64_t passes) {
    if (sweep == Sweep::kForwardBackward) begin_mini_batch(passes);
  }
  struct Turn {
    std::size_t unit = 0;
    bool weights = false, gradients = false;  ///< what is loaded
    bool adds = false;          ///< it adds to gradients, which are copied back afterwards
    bool zero = false;          ///< the gradients start at zero
    bool last = false;          ///< no later turn adds to the gradients
    bool blocks_follow = true;  ///< no other turn follows directly
  };
  /// Only for a table that has a unit.
  [[nodiscard]] Turn take(Table table, BlockUse how) {
    Turn turn;
    turn.unit = *units_.of(table);
    turn.weights = table == Table::kHead || units_.reads_embedding;
    if (units_.reads_embedding)
      turn.blocks_follow = (table == Table::kHead) == (how == BlockUse::kAddGradients);
    turn.adds = trained_ && how == BlockUse::kAddGradients;
    if (!turn.adds) return turn;
    bool& started = started_[turn.unit == units_.embedding ? 0 : 1];
    turn.zero = !started;
    turn.gradients = started;
    started = true;
    const bool is_head = table == Table::kHead;
    if (units_.tied()) {
      turn.last = !is_head;
    } else {
      turn.last = ++turns_[is_head] == passes_;
    }
    return turn;
  }

 private:
  TableUnits units_;
  bool trained_;
  std::array<bool, 2> started_{};        // per unit: gradients of the mini-batch exist
  std::array<std::int64_t, 2> turns_{};  // turns of the mini-batch so far
  std::int64_t passes_ = 0;
};

}  // namespace neap::step

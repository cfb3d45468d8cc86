// For ZeRO-3 weights: the places of embedding and head in the memory that they share with the
// blocks' prefetch buffers.
//
// Threads   values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/model/layout.h"
#include "step/units/table_turns.h"

namespace neap::step {

struct SlicedTables {
  struct Placed {
    std::size_t unit = 0;    ///< number in the layout
    std::int64_t first = 0;  ///< offset of its first element
  };
  std::array<std::vector<Placed>, 2> units;  ///< for each table's turn
  std::int64_t elements = 0;                 ///< of the largest turn
  TableUnits turns;
};

/// For a model, or a stage of it, with spec::flat_layout. The turn of a tied head includes the
/// embedding.
[[nodiscard]] inline SlicedTables sliced_tables(const spec::Architecture& shape, spec::Head head,
                                                const std::vector<spec::FlatUnit>& layout) {
  SlicedTables out;
  const bool reads_table = shape.has_head() && shape.ties_table(head);
  std::array<std::int64_t, 2> sizes{};
  const auto add = [&](std::size_t turn, std::size_t unit) {
    out.units[turn].push_back({unit, sizes[turn]});
    sizes[turn] += layout[unit].elements;
  };
  for (std::size_t u = 0; u < layout.size(); ++u) {
    if (layout[u].block >= 0) continue;
    const bool embeds = layout[u].find(spec::Module::kTokenEmbedding) != nullptr;
    if (embeds && shape.embeds()) {
      out.turns.reads_it_again =
          shape.embedding_norm || layout[u].find(spec::Module::kProjectIn) != nullptr;
      add(index_of(Table::kEmbedding), u);
    }
    if (!embeds || reads_table) add(index_of(Table::kHead), u);
  }
  out.elements = std::max(sizes[0], sizes[1]);
  if (shape.embeds()) out.turns.embedding = index_of(Table::kEmbedding);
  if (shape.has_head()) out.turns.head = index_of(Table::kHead);
  out.turns.reads_embedding = shape.embeds();
  return out;
}

}  // namespace neap::step

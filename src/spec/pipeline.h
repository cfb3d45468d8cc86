// How the stages of a pipeline divide a model: each has some blocks one after another, the first one the
// embedding, the last one the final norm and the head. Where stages have chunks, blocks are divided into
// stages * chunks parts, and chunk c of stage s is part c * stages + s (step/pipeline_schedule.h).
//
// A stage is an Architecture of its own: layouts, tags, optimizer states and passes follow from it. Where the
// head is the embedding's table, the first and the last stage each have a copy of it.
//
// Blocks are divided so that the part with the most work has as little as possible: the matrices that a token is
// multiplied by, the head and an embedding's projection with those of the blocks. Scores of attention, which are the
// same in each block and depend on lengths, are left out. Of such divisions one whose parts, and then stages, have
// parameters as even as can be, and of these one whose later parts have more: earlier ones keep activations of more
// micro-batches.
//
// Threads   values and functions without state.   Failure   kInvalidArgument, with the sizes that would do.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "spec/architecture.h"
#include "spec/layout.h"

namespace neap::spec {

/// Blocks of each part, of an undivided model with as many blocks as parts at least: its layout, if it has one.
[[nodiscard]] std::vector<std::int64_t> divide_blocks(const Architecture& whole, Head head,
                                                      std::int64_t stages);

/// A stage of the undivided model `whole`. `name`: the model's, for messages.
[[nodiscard]] Result<Architecture> stage_of(const Architecture& whole, Head head,
                                            std::int64_t stages, std::int64_t stage,
                                            std::string_view name);

/// The stage that a unit of the whole model's layout, or of its adapters', belongs to; of one that two stages
/// have the first.
[[nodiscard]] std::int64_t stage_of_unit(const Architecture& whole, Head head, std::int64_t stages,
                                         const FlatUnit& unit);

/// All stages together, with their layout.
[[nodiscard]] Architecture undivided(Architecture stage);

}  // namespace neap::spec

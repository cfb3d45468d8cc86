// Divides a model into pipeline stages. Each stage has consecutive blocks. The first also has the
// embedding, and the last has the final norm and the head. With chunks, blocks are divided into
// stages * chunks parts, and chunk c of stage s is part c * stages + s (step/pipeline/pipeline_schedule.h).
//
// A stage is an Architecture of its own, from which layouts, tags, optimizer states and passes
// follow. If the head is tied to the embedding, the first and the last stage each have a copy of
// the weight.
//
// The division minimises the work of the largest part. Work counts the matrices that each token is
// multiplied by, including the head and an embedding's projection. Attention scores are left out,
// because they depend on lengths and are the same in every block. Among equal divisions it balances
// parameters over parts, then over stages. Then it prefers more parameters in later parts, because
// earlier stages keep activations of more micro-batches.
//
// Threads   values and stateless functions.
// Failure   kInvalidArgument with the sizes that would be valid.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "spec/model/architecture.h"
#include "spec/model/layout.h"

namespace neap::spec {

/// The number of blocks of each part: the configured layout if there is one. `whole` must have at
/// least as many blocks as parts.
[[nodiscard]] std::vector<std::int64_t> divide_blocks(const Architecture& whole, Head head,
                                                      std::int64_t stages);

/// A stage of the whole model. `name` is used in messages.
[[nodiscard]] Result<Architecture> stage_of(const Architecture& whole, Head head,
                                            std::int64_t stages, std::int64_t stage,
                                            std::string_view name);

/// The stage that has a unit of the whole model or of its adapters. For a unit on two stages it is
/// the first.
[[nodiscard]] std::int64_t stage_of_unit(const Architecture& whole, Head head, std::int64_t stages,
                                         const FlatUnit& unit);

/// The whole model, with its stages' layout.
[[nodiscard]] Architecture undivided(Architecture stage);

}  // namespace neap::spec

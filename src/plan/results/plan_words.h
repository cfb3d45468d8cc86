// Words that plans use in text and in JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/results/memory_plan.h"

namespace neap::plan {

/// "need", "stay", "host" (offloaded), "drop" (freed without a copy) or "absent" (the phase runs
/// once, before the tag is filled).
[[nodiscard]] std::string cell_word(const MemoryPlan& plan, std::size_t tag, std::size_t phase);
[[nodiscard]] std::string contents_word(Contents contents);  ///< "live", "frozen", "scratch"
[[nodiscard]] std::string arena_word(arena::Policy policy);  ///< "host", "discard"
[[nodiscard]] std::string_view kind_word(Move::Kind kind);   ///< "pause", "resume"
/// Models with offloaded weights.
[[nodiscard]] std::vector<spec::ModelId> streamed_models(const MemoryPlan& plan);
/// Whether its blocks are read from its own files.
[[nodiscard]] bool reads_files(const MemoryPlan& plan, spec::ModelId model);
/// A sufficient capacity, rounded up so that the text is also sufficient.
[[nodiscard]] std::string capacity_text(Bytes least);
/// Seconds, memory and how it is achieved, without a full stop.
[[nodiscard]] std::string sentence_of(const MemoryPlan& plan);
/// The same as JSON fields: docs/json.md.
[[nodiscard]] Json summary_json(const MemoryPlan& plan);

}  // namespace neap::plan

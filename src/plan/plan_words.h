// The words that plans use in text and in JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/memory_plan.h"

namespace neap::plan {

/// "need", "stay", "host" (away, contents kept), "drop" (away, contents given up) or "absent"
/// (the phase runs once, before the tag is filled).
[[nodiscard]] std::string cell_word(const MemoryPlan& plan, std::size_t tag, std::size_t phase);
[[nodiscard]] std::string contents_word(Contents contents);  ///< "live", "frozen", "scratch"
[[nodiscard]] std::string arena_word(arena::Policy policy);  ///< "host", "discard"
[[nodiscard]] std::string_view kind_word(Move::Kind kind);   ///< "pause", "resume"
/// Models whose weights are streamed.
[[nodiscard]] std::vector<spec::ModelId> streamed_models(const MemoryPlan& plan);
/// Its blocks are read from its own files.
[[nodiscard]] bool reads_files(const MemoryPlan& plan, spec::ModelId model);
/// A capacity that suffices, rounded up: the text is one, too.
[[nodiscard]] std::string capacity_text(Bytes least);
/// Seconds, memory and how it is kept to, without a full stop.
[[nodiscard]] std::string sentence_of(const MemoryPlan& plan);
/// The same as fields: docs/plan-json.md.
[[nodiscard]] Json summary_json(const MemoryPlan& plan);

}  // namespace neap::plan

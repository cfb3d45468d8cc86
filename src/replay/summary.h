// Results as JSON for machines (docs/json.md) and as text for people.
#pragma once

#include "base/json.h"
#include "replay/advice.h"
#include "replay/blame.h"

namespace neap::replay {

inline constexpr int kJsonSchema = 1;

/// One scenario of `--settings` and its outcome.
struct WhatIf {
  Scenario scenario;
  Outcome outcome;
};

struct Summary {
  const Workload* workload = nullptr;
  Fidelity fidelity;
  std::vector<WhatIf> what_if;
  std::optional<AdviceReport> advice;
  std::optional<Blame> blame;
  std::optional<CutHistory> cut;  ///< absent if the history is complete
  Outcome baseline;               ///< the recorded settings with `capacity`
  Bytes capacity;                 ///< zero when unknown
};

[[nodiscard]] Json to_json(const Summary& summary);
[[nodiscard]] std::string to_text(const Summary& summary);

/// Parses scenarios from JSON lines. Text before the first brace of a line is skipped.
[[nodiscard]] Result<std::vector<Scenario>> read_scenarios(std::string_view text,
                                                           std::string_view name,
                                                           const cache::PolicyVersion& version);

}  // namespace neap::replay

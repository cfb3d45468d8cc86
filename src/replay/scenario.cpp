// Parts of a scenario: its settings, and the phases after which the cache is emptied.
#include <algorithm>

#include "base/format.h"
#include "replay/what_if.h"

namespace neap::replay {

std::string_view without_prefix(std::string_view phase) {
  constexpr std::string_view kPrefix = "phase:";
  return phase.substr(0, kPrefix.size()) == kPrefix ? phase.substr(kPrefix.size()) : phase;
}

bool is_training(std::string_view phase) {
  return without_prefix(phase).substr(0, 5) == "train";
}

EmptyPolicy EmptyPolicy::parse(std::string_view text) {
  EmptyPolicy policy;
  if (text.empty() || text == "none") return policy;
  policy.kind = text == "inference"  ? Kind::kInference
                : text == "training" ? Kind::kTraining
                : text == "all"      ? Kind::kAll
                : text == "recorded" ? Kind::kRecorded
                                     : Kind::kNamed;
  if (policy.kind != Kind::kNamed) return policy;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (!name.empty()) policy.names.emplace_back(name);
  }
  return policy;
}

std::string EmptyPolicy::to_string() const {
  switch (kind) {
    case Kind::kNone:
      return "none";
    case Kind::kInference:
      return "inference";
    case Kind::kTraining:
      return "training";
    case Kind::kAll:
      return "all";
    case Kind::kRecorded:
      return "recorded";
    case Kind::kNamed:
      break;
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

bool EmptyPolicy::after(std::string_view phase) const {
  switch (kind) {
    case Kind::kNone:
    case Kind::kRecorded:
      return false;
    case Kind::kAll:
      return true;
    case Kind::kInference:
      return !is_training(phase);
    case Kind::kTraining:
      return is_training(phase);
    case Kind::kNamed:
      break;
  }
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return without_prefix(name) == without_prefix(phase);
  });
}

std::string Scenario::name() const {
  std::string text = conf.empty() ? "(defaults)" : conf;
  if (fraction > 0) text += format(", fraction {}", fraction);
  return text;
}

Result<Scenario> Scenario::make(std::string_view conf, std::string_view empty, double fraction,
                                const cache::PolicyVersion& version) {
  if (!(fraction >= 0 && fraction <= 1))
    return Status(ErrorCode::kInvalidArgument,
                  format("Memory fraction {} is not between 0 and 1", fraction));
  Scenario scenario;
  scenario.conf = conf;
  scenario.empty = EmptyPolicy::parse(empty);
  scenario.fraction = fraction;
  scenario.version = version;
  NEAP_TRY_ASSIGN(scenario.settings, cache::Settings::parse(conf, version));
  if (fraction == 0) scenario.fraction = scenario.settings.memory_fraction;
  return scenario;
}

Scenario recorded_scenario(const Workload& workload) {
  Scenario scenario;
  scenario.conf = workload.recording->settings.conf;
  scenario.settings = workload.settings;
  scenario.version = workload.version;
  scenario.empty = EmptyPolicy::parse("recorded");
  return scenario;
}

}  // namespace neap::replay

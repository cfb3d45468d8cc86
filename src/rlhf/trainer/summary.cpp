#include "rlhf/trainer/summary.h"

#include "base/format.h"
#include "base/json.h"
#include "base/text.h"
#include "report/move_table.h"
#include "report/phase_table.h"
#include "report/rollout_log.h"
#include "report/run_folder.h"
#include "report/step_log.h"

namespace neap::rlhf {
namespace {

std::string samples_text(const Json& validation) {
  std::string out = format("\nTexts at step {}:\n", validation["step"].get<std::int64_t>());
  constexpr std::size_t kColumns = 240;  // length of a text: three lines of a terminal
  for (const Json& json : validation["samples"]) {
    const auto sample = report::Rollout::from_json(json);
    out += format("  {}score {:.4g}  {} |{}\n",
                  sample.verdict.empty() ? "" : format("[{}] ", sample.verdict), sample.score,
                  shortened(printable(sample.prompt), kColumns),
                  shortened(printable(sample.response), kColumns));
  }
  return out;
}

std::string validations_text(const std::vector<Json>& lines) {
  if (lines.empty()) return "";
  const Json& first = lines.front();
  const Json& last = lines.back();
  std::string out = format("\nHeld-out data, step {} -> step {}:\n",
                           first["step"].get<std::int64_t>(), last["step"].get<std::int64_t>());
  for (const auto& [name, value] : last.items()) {
    if (!name.starts_with("val/") || !value.is_number()) continue;
    const Json before = first.contains(name) ? first[name] : Json();
    out += format("  {:<24} {:>10} -> {:.4g}\n", name,
                  before.is_number() ? format("{:.4g}", before.get<double>()) : "-",
                  value.get<double>());
  }
  if (!first["samples"].empty()) out += samples_text(first);
  if (lines.size() > 1 && !last["samples"].empty()) out += samples_text(last);
  return out;
}

}  // namespace

std::string summary_text(const std::filesystem::path& output, const plan::MemoryPlan& plan,
                         Bytes measured_peak) {
  std::string out =
      validations_text(value_or_throw(report::StepLog::read(output / report::kValidationFile)));
  const auto records = value_or_throw(report::PhaseLog::read(output));
  const auto planned = value_or_throw(report::PlanSummary::from_json(plan.to_json()));
  out += "\n" + report::PhaseTable::from_records(records, &planned).to_text();
  const report::MoveTable moves = report::MoveTable::from_records(records);
  if (!moves.rows.empty()) out += "\n" + moves.to_text();
  return out + "\n" + report::MemoryLines::of(planned, measured_peak).to_text();
}

}  // namespace neap::rlhf

#include "report/run_memory.h"

#include <algorithm>

#include "base/file.h"
#include "base/format.h"
#include "report/load_report.h"

namespace neap::report {
namespace {

Status read_planned(const std::filesystem::path& file, RunMemory& out) {
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, read_limits::kPlan));
  NEAP_TRY_ASSIGN(const Json plan, parse_json(text, file.string()));
  const auto corrupt = [&](const char* key) {
    return Status(ErrorCode::kCorrupt,
                  format("{}: \"{}\" is missing or of the wrong type", file.string(), key));
  };
  if (!plan.is_object() || !plan.contains("task") || !plan["task"].is_string())
    return corrupt("task");
  out.task = plan["task"].get<std::string>();
  NEAP_TRY_ASSIGN(const PlanSummary summary, PlanSummary::from_json(plan));
  for (const PlanSummary::Phase& phase : summary.phases)
    out.planned_temporaries.emplace(phase.name, phase.transient);
  if (!plan.contains("tags") || !plan["tags"].is_array()) return corrupt("tags");
  for (const Json& tag : plan["tags"]) {
    const bool right = tag.is_object() && tag.contains("tag") && tag["tag"].is_string() &&
                       tag.contains("bytes") && tag["bytes"].is_number_unsigned();
    if (!right) return corrupt("tags");
    out.planned_tags.emplace(tag["tag"].get<std::string>(),
                             Bytes(tag["bytes"].get<std::uint64_t>()));
  }
  return {};
}

}  // namespace

Result<RunMemory> read_run_memory(const std::filesystem::path& run) {
  std::error_code ignored;
  for (const std::string_view file : {kPlanFile, kPhasesFile})
    if (!std::filesystem::exists(run / file, ignored))
      return Status(ErrorCode::kNotFound,
                    format("{} is not the output of a training: it has no {}", run.string(), file));
  RunMemory out;
  NEAP_TRY(read_planned(run / kPlanFile, out));
  NEAP_TRY_ASSIGN(const std::vector<PhaseRecord> records, PhaseLog::read(run));
  for (const PhaseRecord& record : records) {
    Bytes& most = out.temporaries[record.phase];
    most = std::max(most, record.transient_reserved);
  }
  if (!std::filesystem::exists(run / kTraceFile, ignored)) {
    out.notes.push_back(
        format("{} has no {}, which has the bytes of tags", run.string(), kTraceFile));
    return out;
  }
  LoadOptions options;
  options.max_leaves = 1024;  // peaks are exact with any value
  NEAP_TRY_ASSIGN(Report report, load_report(run, options));
  for (const Layer& layer : report.history.layers)
    if (layer.kind == Layer::Kind::kTag && layer.peak > 0)
      out.tags.emplace(layer.name, Bytes(layer.peak));
  out.notes = std::move(report.notes);
  return out;
}

}  // namespace neap::report

#include "report/training_report.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/text.h"
#include "report/run_folder.h"
#include "report/step_log.h"
#include "report/svg.h"

namespace neap::report {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kOpenResponses = 16;  // longer lists are collapsed
constexpr Bytes kMostResponses = 1_MiB;     // bytes of rollouts.jsonl shown in a page

Status for_each_row(const fs::path& path, const std::function<void(const Json&)>& visit) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? StepLog::for_each(path, visit) : ok_status();
}

StepRollouts samples_of(const Json& row) {
  StepRollouts out{row["step"].get<std::uint64_t>(), {}, true};
  const auto samples = row.find("samples");
  if (samples == row.end() || !samples->is_array()) return out;
  for (const Json& sample : *samples)
    if (sample.is_object()) out.rollouts.push_back(Rollout::from_json(sample));
  return out;
}

std::string response_row(const Rollout& r, bool with_truth) {
  std::vector<std::string> scores = {format("{:.4g}", r.score)};
  if (!r.verdict.empty()) scores.push_back(r.verdict);
  for (const auto& [name, value] : r.rewards)
    if (!std::isnan(value)) scores.push_back(format("{} {:.4g}", name, value));
  scores.push_back(format("{} tokens{}", r.tokens, r.truncated ? ", cut" : ""));
  std::string out = format("<tr><td class=\"scores\">{}</td><td>{}</td>",
                           escape_markup(joined(scores, ", ")), escape_markup(r.prompt));
  if (with_truth) out += format("<td>{}</td>", escape_markup(joined(r.ground_truth, "\n")));
  return out + format("<td>{}</td></tr>", escape_markup(r.response));
}

std::string step_html(const StepRollouts& step, bool open) {
  double low = INFINITY, high = -INFINITY, sum = 0;
  for (const Rollout& r : step.rollouts) {
    low = std::min(low, r.score);
    high = std::max(high, r.score);
    sum += r.score;
  }
  const bool with_truth = std::any_of(step.rollouts.begin(), step.rollouts.end(),
                                      [](const Rollout& r) { return !r.ground_truth.empty(); });
  std::string out = format(
      "<details{}><summary>Step {}: {} responses{}, score {:.4g} ({:.4g} to {:.4g})</summary>"
      "<div class=\"scroll\"><table class=\"texts\"><thead><tr><th scope=\"col\">score</th>"
      "<th scope=\"col\">prompt</th>{}<th scope=\"col\">response</th></tr></thead><tbody>",
      open ? " open" : "", step.step, step.rollouts.size(),
      step.whole ? "" : " (the last ones of the step)",
      sum / static_cast<double>(step.rollouts.size()), low, high,
      with_truth ? "<th scope=\"col\">truth</th>" : "");
  for (const Rollout& r : step.rollouts) out += response_row(r, with_truth);
  return out + "</tbody></table></div></details>";
}

std::string steps_html(std::string_view title, const std::vector<StepRollouts>& steps) {
  std::string out;
  for (std::size_t i = steps.size(); i-- > 0;)
    if (!steps[i].rollouts.empty())
      out += step_html(steps[i], out.empty() && steps[i].rollouts.size() <= kOpenResponses);
  return out.empty() ? out : format("<section><h2>{}</h2>{}</section>\n", title, out);
}

}  // namespace

Result<TrainingReport> load_training(const fs::path& run) {
  TrainingReport out;
  TrainingCurves curves;
  NEAP_TRY(for_each_row(run / kMetricsFile, [&](const Json& row) { curves.add(row); }));
  NEAP_TRY(for_each_row(run / kValidationFile, [&](const Json& row) {
    curves.add(row);
    StepRollouts samples = samples_of(row);
    if (samples.rollouts.empty()) return;
    if (out.samples.size() == 2) out.samples.pop_back();
    out.samples.push_back(std::move(samples));
  }));
  NEAP_TRY(for_each_row(run / kWarningsFile, [&](const Json& row) {
    if (row.contains("warning") && row["warning"].is_string())
      out.warnings.push_back(format("Step {}: {}", row["step"].get<std::uint64_t>(),
                                    row["warning"].get<std::string>()));
  }));
  out.curves = curves.panels();
  NEAP_TRY_ASSIGN(out.responses, read_rollouts(run, kMostResponses));
  return out;
}

std::string curves_html(const TrainingReport& report) {
  std::string out;
  for (const std::string& warning : report.warnings)
    out += format("<p class=\"note\">{}</p>", escape_markup(warning));
  if (report.curves.empty()) return out;
  out += "<section><h2>Training</h2><div class=\"curves\">";
  for (const CurvePanel& panel : report.curves) {
    out += format("<figure><figcaption>{}</figcaption>{}<p>", escape_markup(panel.title),
                  panel_svg(panel));
    for (std::size_t i = 0; i < panel.curves.size(); ++i) {
      const auto& [name, curve] = panel.curves[i];
      out += format(
          "<span><i style=\"background:{}\"></i>{} <small>{:.4g} &rarr; {:.4g}</small>"
          "</span>",
          curve_color(i), escape_markup(name), curve.first(), curve.last());
    }
    out += "</p></figure>";
  }
  return out + "</div></section>\n";
}

std::string texts_html(const TrainingReport& report) {
  return steps_html("Samples of validation", report.samples) +
         steps_html("Responses in training", report.responses);
}

}  // namespace neap::report

// neap report: draws a run or a snapshot, and prints its table.
#include <filesystem>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/program_commands.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/load_report.h"
#include "report/perfetto.h"
#include "report/png.h"
#include "report/run_folder.h"

namespace neap::cli {
namespace {

class ReportCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "report"; }
  [[nodiscard]] std::string summary() const override {
    return "Draw the memory of a run or a snapshot over time, by phase and tag";
  }

  void declare(CLI::App& app) override {
    app.add_option(
           "INPUT", input_,
           "a run's folder, a Neap trace, or a PyTorch memory snapshot (pickle, plain, gzip "
           "or zstd)")
        ->required();
    app.add_option("--html", html_,
                   "self-contained page; default: report.html in the run's folder, or INPUT.html "
                   "in the working folder, unless another output is named")
        ->type_name("FILE")
        ->group("Output");
    app.add_option("--svg", svg_, "the charts as SVG")->type_name("FILE")->group("Output");
    app.add_option("--png", png_, "the charts as PNG")->type_name("FILE")->group("Output");
    app.add_option("--perfetto", perfetto_,
                   "trace for ui.perfetto.dev; compressed if the name ends with .gz")
        ->type_name("FILE")
        ->group("Output");
    app.add_flag("--json", json_,
                 "print JSON instead of tables, and no default page (docs/json.md)")
        ->group("Output");
    app.add_option("--at", load_options_.at,
                   "moment of a segment map: a time (3.2s, 120ms), peak (default), peak-allocated, "
                   "end, or an event (#4711); may be repeated")
        ->type_name("TIME")
        ->group("Contents");
    app.add_option("--from", from_, "charts begin here (SVG, PNG)")
        ->type_name("TIME")
        ->group("Contents");
    app.add_option("--to", to_, "charts end here (SVG, PNG)")->type_name("TIME")->group("Contents");
    app.add_option("--device", device_, "device number; default: the device with most events")
        ->type_name("N")
        ->group("Contents");
    app.add_option("--replay", load_options_.replay,
                   "result of `neap replay INPUT --json`, whose settings are compared")
        ->type_name("FILE")
        ->group("Contents");
  }

  int run() override {
    load_options_.device = device_;
    load_options_.progress = true;
    auto report = report::load_report(input_, load_options_);
    if (!report.ok()) return fail(report.status());
    report::ChartOptions chart;
    if (const Status status = choose_part(*report, chart); !status.ok()) return fail(status);
    if (const Status status = write_outputs(*report, chart); !status.ok()) return fail(status);
    const std::string text = json_ ? json_text(report->to_json(), 2) + "\n" : report->to_text();
    const Status written = write_output(text);
    return written.ok() ? 0 : fail(written);
  }

 private:
  /// Applies --at, --from and --to to the charts.
  Status choose_part(const report::Report& report, report::ChartOptions& chart) const {
    chart.segment_maps = !load_options_.at.empty();
    if (!from_.empty()) {
      NEAP_TRY_ASSIGN(chart.from_seconds, report::parse_duration(from_));
      NEAP_TRY(report::check_moment("--from", *chart.from_seconds, report.history));
    }
    if (!to_.empty()) {
      NEAP_TRY_ASSIGN(chart.to_seconds, report::parse_duration(to_));
    }
    const double length = static_cast<double>(report.history.end_ns) * 1e-9;
    const double begin = chart.from_seconds.value_or(0), end = chart.to_seconds.value_or(length);
    if ((chart.from_seconds || chart.to_seconds) && end <= begin)
      return {ErrorCode::kInvalidArgument,
              format("--from {} is not before --to {}; the recording is {} long",
                     report::duration_text(begin), report::duration_text(end),
                     report::duration_text(length))};
    return {};
  }

  Status write_outputs(const report::Report& report, const report::ChartOptions& chart) {
    if (report.history.events == 0 && !(svg_.empty() && png_.empty() && perfetto_.empty()))
      return {ErrorCode::kInvalidArgument,
              format("{} has no {} (trainer.trace_max_size = 0): there is no memory over time to "
                     "draw; --html has curves and tables",
                     input_.string(), report::kTraceFile)};
    const bool named = !svg_.empty() || !png_.empty() || !perfetto_.empty() || json_;
    if (html_.empty() && !named) {
      std::error_code ignored;
      html_ = std::filesystem::is_directory(input_, ignored)
                  ? input_ / report::kReportFile
                  : std::filesystem::path(input_.filename().string() + ".html");
    }
    if (!html_.empty()) {
      NEAP_TRY_ASSIGN(const std::string page, report::report_html(report));
      NEAP_TRY(write(html_, page));
    }
    if (!svg_.empty()) NEAP_TRY(write(svg_, report::chart_svg(report, chart)));
    if (!png_.empty()) {
      NEAP_TRY_ASSIGN(const std::string picture, report::chart_png(report, chart));
      NEAP_TRY(write(png_, picture));
    }
    if (!perfetto_.empty()) {
      std::string trace = report::perfetto_json(report);
      if (perfetto_.extension() == ".gz") {
        NEAP_TRY_ASSIGN(trace, report::gzip(trace));
      }
      NEAP_TRY(write(perfetto_, trace));
    }
    return {};
  }

  static Status write(const std::filesystem::path& path, std::string_view contents) {
    NEAP_TRY(write_file_atomic(path, contents));
    log::info(format("wrote {} ({})", path.string(), to_string(Bytes(contents.size()))));
    return {};
  }

  std::filesystem::path input_, html_, svg_, png_, perfetto_;
  std::string from_, to_;
  std::optional<std::uint16_t> device_;
  report::LoadOptions load_options_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_report_command() {
  return std::make_unique<ReportCommand>();
}

}  // namespace neap::cli

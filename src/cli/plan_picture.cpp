#include "cli/plan_picture.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "report/canvas.h"
#include "report/gantt.h"
#include "report/palette.h"
#include "report/svg.h"

namespace neap::cli {
namespace {

constexpr double kPixelsAPoint = 2;

report::Gantt gantt_of(const plan::Simulation& simulation) {
  report::Gantt out;
  using Kind = step::PipelineAction::Kind;
  out.kinds = {"forward of a micro-batch", "backward"};
  if (simulation.plans.zero_bubble) out.kinds.emplace_back("backward of weights");
  std::size_t stages = 0;
  for (const step::PipelineSpan& span : simulation.plans.spans)
    stages = std::max(stages, static_cast<std::size_t>(span.stage) + 1);
  for (std::size_t s = 0; s < stages; ++s) out.rows.push_back(format("stage {}", s + 1));
  for (const step::PipelineSpan& span : simulation.plans.spans) {
    const Kind kind = span.action.kind;
    const unsigned row = kind == Kind::kForward ? 0U : kind == Kind::kBackwardWeights ? 2U : 1U;
    std::string name = std::to_string(span.action.micro_batch + 1);
    if (simulation.plans.chunks > 1) name += format(".{}", span.action.chunk + 1);
    out.bars.push_back({span.stage, row, span.begin, span.end, std::move(name)});
    out.seconds = std::max(out.seconds, span.end);
  }
  out.title =
      format("{} stages{}, {} micro-batches{}", stages,
             simulation.plans.chunks > 1 ? format(" of {} chunks", simulation.plans.chunks) : "",
             simulation.micro_batches, simulation.plans.zero_bubble ? ", zero bubble" : "");
  return out;
}

}  // namespace

Status write_picture(const plan::Simulation& simulation, const std::filesystem::path& file) {
  const bool png = file.extension() == ".png";
  if (!png && file.extension() != ".svg")
    return {ErrorCode::kInvalidArgument,
            format("A picture is an .svg or a .png file; not {}", file.string())};
  if (simulation.plans.spans.empty())
    return {ErrorCode::kInvalidArgument,
            "--picture shows the stages of a pipeline; this job has one "
            "(parallel.pipeline_model_parallel_size)"};
  const report::Gantt gantt = gantt_of(simulation);
  const report::GanttSize size = report::size_of(gantt);
  if (png) {
    report::Canvas canvas(size.width, size.height, kPixelsAPoint, report::kPaper);
    report::draw(canvas, gantt);
    NEAP_TRY_ASSIGN(const std::string bytes, canvas.to_png());
    return write_file_atomic(file, bytes);
  }
  report::SvgPainter svg(size.width, size.height, gantt.title);
  report::draw(svg, gantt);
  return write_file_atomic(file, svg.finish());
}

}  // namespace neap::cli

#include "plan/simulation.h"

#include <algorithm>
#include <utility>

#include "plan/counted_backend.h"
#include "plan/device_rates.h"
#include "plan/tags.h"
#include "spec/mesh.h"

namespace neap::plan {
namespace {

constexpr auto kPipe = static_cast<std::size_t>(spec::Axis::kPipe);

// What a stage computes of a body of the step: a phase, or the two parts of a training phase.
struct Section {
  spec::Phase phase;
  double seconds = 0, copies = 0, share = 1;
  PassSeconds passes{};
  step::OfAxes<double> axes{};
  // Behind the last backward.
  [[nodiscard]] double update() const {
    return seconds - passes.forward - passes.backward - passes.sums;
  }
};

void add_phase(Section& section, const PhasePlan& planned) {
  section.seconds += planned.seconds;
  section.copies += planned.wait_seconds;
  for (std::size_t a = 0; a < spec::kAxes; ++a) section.axes[a] += planned.axis_seconds[a];
  section.passes.forward += planned.passes.forward;
  section.passes.backward += planned.passes.backward;
  section.passes.sums += planned.passes.sums;
}

// In the order of the step, which is that of every stage.
std::vector<Section> sections_of(const spec::Job& job, const MemoryPlan& plan) {
  const spec::Recipe recipe = spec::describe(job, plan.modes);
  std::vector<Section> out;
  for (std::size_t p = 0; p < plan.cycle(); ++p) {
    const PhasePlan& planned = plan.phases[p];
    const spec::Phase& phase =
        *std::find_if(recipe.phases.begin(), recipe.phases.end(),
                      [&](const spec::Phase& candidate) { return candidate.id == planned.id; });
    if (phase.part != spec::TrainPart::kUpdate) out.push_back({phase, 0, 0, planned.share});
    add_phase(out.back(), planned);
  }
  return out;
}

class StepOfStages {
 public:
  StepOfStages(const spec::Job& job, const Target& target, Simulation& out)
      : job_(job),
        dtype_(compute_dtype(job, target)),
        network_(network_of(job, target.network ? *target.network : default_network(target.cuda))),
        out_(out) {}

  Status run() {
    NEAP_TRY(read_tables());
    std::vector<std::vector<Section>> all;
    double moves = 0;
    for (const StagePlan& stage : out_.plans.stages) {
      all.push_back(sections_of(job_, stage.plan));
      moves = std::max(moves, stage.plan.move_seconds);
    }
    for (std::size_t i = 0; i < all.front().size(); ++i) {
      std::vector<Section> stages;
      stages.reserve(all.size());
      for (const std::vector<Section>& sections : all) stages.push_back(sections.at(i));
      NEAP_TRY(add_section(stages));
    }
    out_.seconds += moves;
    for (std::size_t s = 0; s < all.size(); ++s) {
      StepShares& step = out_.stages[s].step;
      step.copies += out_.plans.stages[s].plan.move_seconds;
      step.bubble += moves - out_.plans.stages[s].plan.move_seconds;
    }
    return {};
  }

 private:
  [[nodiscard]] std::size_t stages() const { return out_.plans.stages.size(); }

  // Of the models' tables that are embedding and head: what the first and the last stage send each other.
  Status read_tables() {
    NEAP_TRY_ASSIGN(models_, read_models(job_, spec::describe(job_), dtype_, 0));
    return {};
  }
  [[nodiscard]] double table_seconds(const spec::Phase& phase) const {
    const ModelRole& role = models_.at(phase.model);
    if (stages() == 1 || !phase.trains() || role.lora.rank > 0 ||
        role.head != spec::Head::kLanguageModel || !role.shape.tie_word_embeddings)
      return 0;
    const double bytes = static_cast<double>(role.shape.vocab_size * role.shape.hidden_size) *
                         static_cast<double>(element_bytes(optimizer_of(role, dtype_).gradients));
    return 2 *
           transfer_seconds(network_, out_.mesh, static_cast<std::int64_t>(stages()) - 1, bytes);
  }

  Status add_section(const std::vector<Section>& of) {
    const spec::Phase& phase = of.front().phase;
    const double share = of.front().share;
    if (stages() == 1) {
      add(0, of.front(), share, 0, of.front().seconds);
      out_.seconds += share * of.front().seconds;
      return {};
    }
    const std::int64_t micro_batches = plan::micro_batches(job_, phase);
    const std::int64_t updates =
        phase.trains() ? spec::update_shape(job_, phase.body).updates() : 1;
    const step::PipelineShape shape{static_cast<std::int64_t>(stages()), micro_batches, 1};
    const step::PipelineTimes times = times_of(of, micro_batches, updates);
    if (phase.trains()) out_.spans.clear();
    NEAP_TRY_ASSIGN(const step::PipelineRun run,
                    step::run_pipeline(phase.trains() ? step::pipeline_schedule(shape)
                                                      : step::pipeline_inference(shape),
                                       times, phase.trains() ? &out_.spans : nullptr));
    // Gradients are summed up when a stage has done its list; norms are those of all stages.
    double seconds = run.seconds;
    if (phase.trains()) {
      std::vector<double> ends = run.ends;
      ends.front() = ends.back() = std::max(ends.front(), ends.back()) + table_seconds(phase);
      double update = 0;
      for (std::size_t s = 0; s < stages(); ++s) {
        seconds = std::max(seconds, ends[s] + of[s].passes.sums / static_cast<double>(updates));
        update = std::max(update, of[s].update() / static_cast<double>(updates));
      }
      seconds += update;
    }
    seconds *= static_cast<double>(updates);
    out_.seconds += share * seconds;
    for (std::size_t s = 0; s < stages(); ++s) {
      double transfers = run.transferring[s] * static_cast<double>(updates);
      if (s == 0 || s + 1 == stages())
        transfers += table_seconds(phase) * static_cast<double>(updates);
      add(s, of[s], share, transfers, seconds);
      if (!phase.trains()) continue;
      out_.stages[s].forward = times.forward[s];
      out_.stages[s].backward = times.backward[s];
    }
    return {};
  }

  [[nodiscard]] step::PipelineTimes times_of(const std::vector<Section>& of,
                                             std::int64_t micro_batches,
                                             std::int64_t updates) const {
    const spec::Phase& phase = of.front().phase;
    const spec::Architecture& shape = models_.at(phase.model).shape;
    const double bytes =
        static_cast<double>(shape.tensor.rows_of(micro_batch_spans(job_, phase).rows()) *
                            shape.hidden_size) *
        static_cast<double>(element_bytes(dtype_));
    const double runs = static_cast<double>(micro_batches) * static_cast<double>(updates);
    step::PipelineTimes out;
    for (std::size_t s = 0; s < stages(); ++s) {
      out.forward.push_back((phase.trains() ? of[s].passes.forward : of[s].seconds) / runs);
      out.backward.push_back(of[s].passes.backward / runs);
      out.transfer.push_back(
          transfer_seconds(network_, out_.mesh, static_cast<std::int64_t>(s), bytes));
    }
    return out;
  }

  // What a stage spends `seconds` of all stages on.
  void add(std::size_t s, const Section& section, double share, double transfers, double seconds) {
    StepShares& step = out_.stages[s].step;
    double collectives = 0;
    for (std::size_t a = 0; a < spec::kAxes; ++a) {
      step.axes[a] += share * section.axes[a];
      collectives += section.axes[a];
    }
    step.axes[kPipe] += share * transfers;
    step.copies += share * section.copies;
    step.compute += share * (section.seconds - collectives - section.copies);
    step.bubble += share * (seconds - section.seconds - transfers);
  }

  const spec::Job& job_;
  spec::Dtype dtype_;
  Network network_;
  JobModels models_;
  Simulation& out_;
};

StepShares mean_of(const std::vector<SimulatedStage>& stages) {
  StepShares out;
  const double share = 1 / static_cast<double>(stages.size());
  for (const SimulatedStage& stage : stages) {
    out.compute += share * stage.step.compute;
    out.bubble += share * stage.step.bubble;
    out.copies += share * stage.step.copies;
    for (std::size_t a = 0; a < spec::kAxes; ++a) out.axes[a] += share * stage.step.axes[a];
  }
  return out;
}

// Operations of GPUs that work together take longer than alone by the same rates. The median of five ways to divide a
// model over two H100s; bench/ranks/published.py prints them. Not for plans: their rates are those of a GPU alone.
constexpr double kSlowdown = 1.22;

Target among_ranks(Target target) {
  if (target.rates.bytes <= 0) target.rates = default_rates(true, target.threads);
  target.rates.half_flops /= kSlowdown;
  target.rates.single_flops /= kSlowdown;
  target.rates.bytes /= kSlowdown;
  target.rates.operation_seconds *= kSlowdown;
  return target;
}

double flops_of(const MemoryPlan& plan) {
  double sum = 0;
  for (std::size_t p = 0; p < plan.cycle(); ++p) sum += plan.phases[p].share * plan.phases[p].flops;
  return sum;
}

}  // namespace

double StepShares::sum() const {
  double out = compute + bubble + copies;
  for (const double axis : axes) out += axis;
  return out;
}

Result<Simulation> simulate(const spec::Job& job, const Target& device) {
  Simulation out;
  out.mesh = job.mesh();
  const Target target = device.cuda && out.mesh.ranks() > 1 ? among_ranks(device) : device;
  out.node_ranks = std::max<std::int64_t>(1, job.trainer.n_gpus_per_node);
  NEAP_TRY_ASSIGN(out.plans, plan_stages(job, target));
  out.micro_batches = out.plans.micro_batches;
  out.sequences = job.sequences_per_step();
  out.tokens = out.sequences * job.max_sequence_length();
  const std::int64_t ranks = out.mesh.ranks() / out.mesh.size(spec::Axis::kPipe);
  out.stages.assign(out.plans.stages.size(), {});
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    out.stages[s].ranks = ranks;
    out.flops += static_cast<double>(ranks) * flops_of(out.plans.stages[s].plan);
  }
  NEAP_TRY(StepOfStages(job, target, out).run());
  out.shares = mean_of(out.stages);
  return out;
}

}  // namespace neap::plan

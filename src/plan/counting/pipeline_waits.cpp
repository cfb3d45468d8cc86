#include "plan/counting/pipeline_waits.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/counting/counted_backend.h"
#include "plan/counting/tags.h"
#include "spec/ranks/rank_kinds.h"
#include "spec/types/mesh.h"

namespace neap::plan {
namespace {

// The first phase of each body of the step. A separate update phase belongs to the body before it.
struct Body {
  std::size_t first = 0;
  spec::Phase phase;
};
std::vector<Body> bodies_of(const spec::Job& job, const MemoryPlan& plan) {
  const spec::Recipe recipe = spec::describe(job, plan.modes);
  std::vector<Body> out;
  for (std::size_t p = 0; p < plan.cycle(); ++p) {
    const spec::Phase& phase = *recipe.find(plan.phases[p].id);
    if (phase.part != spec::TrainPart::kUpdate) out.push_back({p, phase});
  }
  return out;
}

class StageClocks {
 public:
  StageClocks(const spec::Job& job, const Target& target)
      : job_(job),
        kinds_(spec::rank_kinds(job.model_meshes())),
        chunks_(job.parallel.virtual_pipeline_model_parallel_size),
        zero_bubble_(job.parallel.zero_bubble()),
        dtype_(compute_dtype(job, target)),
        folders_(target.folders),
        network_(network_of(job, target.network ? *target.network : default_network(target.cuda))) {
    out_.waits.resize(kinds_.size());
  }

  Result<StagedStep> run(const std::vector<Body>& bodies,
                         const std::vector<std::vector<StageWork>>& work) {
    NEAP_TRY_ASSIGN(models_, read_models(job_, spec::describe(job_), dtype_, 0, folders_));
    for (std::size_t b = 0; b < bodies.size(); ++b) {
      std::vector<StageWork> of;
      of.reserve(work.size());
      for (const std::vector<StageWork>& kind : work) of.push_back(kind.at(b));
      NEAP_TRY(run_body(bodies[b].phase, of));
    }
    return std::move(out_);
  }

 private:
  // `of` has each kind of rank.
  Status run_body(const spec::Phase& phase, const std::vector<StageWork>& of) {
    const spec::Mesh mesh = job_.mesh(phase.model);
    if (phase.is_of_rollout() || mesh.size(spec::Axis::kPipe) == 1) {
      wait_for_slowest(of);
      return {};
    }
    const auto stage_of = [&](std::size_t kind) {
      return static_cast<std::size_t>(mesh.coordinate(kinds_[kind].first, spec::Axis::kPipe));
    };
    std::vector<StageWork> stages(static_cast<std::size_t>(mesh.size(spec::Axis::kPipe)));
    for (std::size_t k = 0; k < of.size(); ++k)
      if (StageWork& stage = stages[stage_of(k)];
          stage.forward.empty() || stage.seconds < of[k].seconds)
        stage = of[k];
    NEAP_TRY_ASSIGN(const std::vector<StageWaits> waits, run_stages(phase, stages));
    for (std::size_t k = 0; k < of.size(); ++k) {
      StageWaits& mine = out_.waits[k].emplace_back(waits[stage_of(k)]);
      mine.bubble += stages[stage_of(k)].seconds - of[k].seconds;
    }
    return {};
  }

  // `of` has each stage of the phase's model.
  Result<std::vector<StageWaits>> run_stages(const spec::Phase& phase,
                                             const std::vector<StageWork>& of) {
    const std::int64_t micro_batches = plan::micro_batches(job_, phase);
    const auto updates =
        static_cast<double>(phase.trains() ? spec::update_shape(job_, phase.body).updates() : 1);
    const step::PipelineShape shape{std::ssize(of), micro_batches, chunks_, zero_bubble_};
    step::PipelineTimes times = times_of(phase, of, static_cast<double>(micro_batches) * updates);
    if (phase.trains()) out_.spans.clear();
    NEAP_TRY_ASSIGN(const step::PipelineRun run,
                    step::run_pipeline(phase.trains() ? step::pipeline_schedule(shape)
                                                      : step::pipeline_inference(shape),
                                       times, phase.trains() ? &out_.spans : nullptr));
    const double table = table_seconds(phase);
    const double seconds =
        updates * (phase.trains() ? seconds_of_update(run, of, table, updates) : run.seconds);
    std::vector<StageWaits> waits;
    for (std::size_t s = 0; s < of.size(); ++s) {
      const bool has_table = s == 0 || s + 1 == of.size();
      const double transfers = updates * (run.transferring[s] + (has_table ? table : 0));
      waits.push_back({transfers, seconds - of[s].seconds - transfers});
    }
    if (phase.trains()) {
      out_.model = phase.model;
      out_.forward = std::move(times.forward);
      out_.backward = std::move(times.backward);
      for (std::size_t part = 0; part < out_.backward.size(); ++part)
        out_.backward[part] += times.weights[part];
    }
    return waits;
  }

  // Each rank has the whole model.
  void wait_for_slowest(const std::vector<StageWork>& of) {
    double most = 0;
    for (const StageWork& kind : of) most = std::max(most, kind.seconds);
    for (std::size_t k = 0; k < of.size(); ++k) out_.waits[k].push_back({0, most - of[k].seconds});
  }

  // Gradients are reduced when a stage has finished its schedule. Norms need all stages.
  [[nodiscard]] double seconds_of_update(const step::PipelineRun& run,
                                         const std::vector<StageWork>& of, double table,
                                         double updates) const {
    std::vector<double> ends = run.ends;
    ends.front() = ends.back() = std::max(ends.front(), ends.back()) + table;
    double seconds = run.seconds, update = 0;
    for (std::size_t s = 0; s < of.size(); ++s) {
      seconds = std::max(seconds, ends[s] + of[s].sums / updates);
      update = std::max(update, of[s].update() / updates);
    }
    return seconds + update;
  }

  // The time for the first and the last stage to exchange a tied embedding, or a rank's shard of
  // it.
  [[nodiscard]] double table_seconds(const spec::Phase& phase) const {
    const ModelRole& role = models_.at(phase.model);
    if (!phase.trains() || !role.trains_blocks() || !role.ties_table()) return 0;
    const double bytes = static_cast<double>(role.shape.vocab_size * role.shape.embedding_dim) *
                         static_cast<double>(element_bytes(optimizer_of(role, dtype_).gradients));
    const double parts =
        role.ranks.slices_gradients() ? static_cast<double>(role.ranks.shards()) : 1;
    const spec::Mesh mesh = job_.mesh(phase.model);
    return 2 * transfer_seconds(network_, mesh, mesh.size(spec::Axis::kPipe) - 1, bytes / parts);
  }

  [[nodiscard]] step::PipelineTimes times_of(const spec::Phase& phase,
                                             const std::vector<StageWork>& of, double runs) const {
    const spec::Architecture& shape = models_.at(phase.model).shape;
    const double bytes =
        static_cast<double>(
            spec::rows_of_each(micro_batch_spans(job_, phase).rows(), shape.tensor.ranks) *
            shape.hidden_size) *
        static_cast<double>(element_bytes(dtype_));
    step::PipelineTimes out;
    // Chunks of a phase that does not train are assumed to be equal.
    const double part = runs * static_cast<double>(chunks_);
    for (std::size_t c = 0; c < static_cast<std::size_t>(chunks_); ++c) {
      for (const StageWork& stage : of) {
        out.forward.push_back(phase.trains() ? stage.forward[c] / runs : stage.seconds / part);
        out.backward.push_back(stage.backward[c] / runs);
        out.weights.push_back(stage.weights[c] / runs);
      }
    }
    for (std::size_t s = 0; s < of.size(); ++s)
      out.transfer.push_back(
          transfer_seconds(network_, job_.mesh(phase.model), static_cast<std::int64_t>(s), bytes));
    return out;
  }

  const spec::Job& job_;
  std::vector<spec::RankKind> kinds_;
  std::int64_t chunks_;
  bool zero_bubble_;
  spec::Dtype dtype_;
  weights::OpenFolders folders_;
  Network network_;
  JobModels models_;
  StagedStep out_;
};

}  // namespace

double StageWork::update() const {
  const double passes = std::accumulate(forward.begin(), forward.end(), 0.0) +
                        std::accumulate(backward.begin(), backward.end(), 0.0) +
                        std::accumulate(weights.begin(), weights.end(), 0.0);
  return seconds - passes - sums;
}

std::vector<StageWork> stage_work(const spec::Job& job, const MemoryPlan& plan) {
  const auto chunks = static_cast<std::size_t>(job.parallel.virtual_pipeline_model_parallel_size);
  const std::vector<Body> bodies = bodies_of(job, plan);
  std::vector<StageWork> out;
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    const std::size_t end = b + 1 < bodies.size() ? bodies[b + 1].first : plan.cycle();
    StageWork& work = out.emplace_back();
    work.forward.resize(chunks);
    work.backward.resize(chunks);
    work.weights.resize(chunks);
    for (std::size_t p = bodies[b].first; p < end; ++p) {
      const PhasePlan& phase = plan.phases[p];
      work.seconds += phase.seconds;
      for (std::size_t c = 0; c < phase.passes.forward.size(); ++c) {
        work.forward.at(c) += phase.passes.forward[c];
        work.backward.at(c) += phase.passes.backward.at(c);
      }
      for (std::size_t c = 0; c < phase.passes.weights.size(); ++c)
        work.weights.at(c) += phase.passes.weights[c];
      work.sums += phase.passes.sums;
    }
  }
  return out;
}

Result<StagedStep> run_stages(const spec::Job& job, const Target& target, const MemoryPlan& plan,
                              const std::vector<std::vector<StageWork>>& work) {
  return StageClocks(job, target).run(bodies_of(job, plan), work);
}

void add_waits(const spec::Job& job, const std::vector<StageWaits>& waits, MemoryPlan& plan) {
  const std::vector<Body> bodies = bodies_of(job, plan);
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    PhasePlan& phase = plan.phases[bodies[b].first];
    phase.transfer_seconds = waits.at(b).transfers;
    phase.bubble_seconds = waits.at(b).bubble;
    phase.seconds += waits.at(b).transfers + waits.at(b).bubble;
  }
}

}  // namespace neap::plan

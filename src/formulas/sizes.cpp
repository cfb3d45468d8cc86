#include "formulas/sizes.h"

#include <algorithm>

#include "plan/counting/counted_memory.h"
#include "plan/counting/counted_model.h"
#include "plan/counting/transients.h"
#include "spec/recipe/job_change.h"
#include "step/counting/counting_ops.h"
#include "step/model/page_table.h"
#include "step/model/transformer.h"

namespace neap::formulas {
namespace {

double& part_of(CountedParameters& counted, spec::Module module) {
  switch (spec::traits_of(module).place) {
    case spec::ModulePlace::kEmbedding:
      return counted.embedding;
    case spec::ModulePlace::kAttention:
      return counted.attention;
    case spec::ModulePlace::kMlp:
      return counted.mlp;
    case spec::ModulePlace::kBlockNorms:
      return counted.norms;
    case spec::ModulePlace::kHead:
      break;
  }
  return counted.head;
}

// Bytes of activations that the layers store in a forward of the micro-batch.
double kept_bytes(const plan::ModelRole& role, const spec::Checkpointing& checkpointing,
                  const MicroBatch& batch, spec::Dtype dtype, const step::KernelProfile& profile) {
  const auto allocated = [&](bool blocks) {
    plan::CountedMemory memory{cache::Settings{}};
    step::CountingOps ops(memory, profile, 2);
    auto weights = plan::counted_weights(role, dtype);
    if (!blocks) {
      weights.blocks.clear();
      weights.architecture.num_hidden_layers = 0;
    }
    const auto length = static_cast<std::int64_t>(batch.length);
    const auto tokens = step::CountedTensor::outside(
        {static_cast<std::int64_t>(batch.sequences) * length}, spec::Dtype::kInt64);
    const auto tape =
        step::forward_train(ops, weights, step::of_one_length(tokens, length), checkpointing);
    return static_cast<double>(memory.allocated().count());
  };
  return allocated(true) - allocated(false);
}

CountedActivations count_activations(const ModelSizes& model, const spec::Checkpointing& planned,
                                     spec::Dtype dtype, const step::KernelProfile& profile) {
  plan::ModelRole first = model.role;
  first.shape.num_hidden_layers = 1;
  const auto of_one = [&](spec::CheckpointMode mode) {
    return kept_bytes(first, spec::checkpointing(mode, first.shape), model.batch, dtype, profile);
  };
  return {of_one(spec::CheckpointMode::kNone), of_one(spec::CheckpointMode::kSelective),
          of_one(spec::CheckpointMode::kFull),
          kept_bytes(model.role, planned, model.batch, dtype, profile)};
}

Recompute recompute_of(spec::CheckpointMode mode) {
  switch (mode) {
    case spec::CheckpointMode::kSelective:
      return Recompute::kSelective;
    case spec::CheckpointMode::kFull:
      return Recompute::kFull;
    case spec::CheckpointMode::kNone:
    case spec::CheckpointMode::kAuto:  // without a capacity limit the plan stores all activations
      break;
  }
  return Recompute::kNone;
}

double elements_of(const std::vector<spec::FlatUnit>& units) {
  double sum = 0;
  for (const spec::FlatUnit& unit : units)
    for (const spec::Parameter& p : unit.parameters) sum += static_cast<double>(p.elements());
  return sum;
}

ModelSizes sizes_of(const plan::ModelRole& role) {
  ModelSizes model;
  model.role = role;
  const spec::Architecture& a = role.shape;
  model.letters = {static_cast<double>(a.num_hidden_layers), static_cast<double>(a.hidden_size),
                   static_cast<double>(a.num_attention_heads), static_cast<double>(a.vocab_size)};
  model.parameters = count_parameters(a, role.head);
  if (role.lora.rank > 0) model.adapter = elements_of(spec::lora_layout(a, role.head, role.lora));
  return model;
}

void add_training(ModelSizes& model, const spec::Job& job, const spec::Phase& phase,
                  spec::Dtype dtype) {
  const auto width = static_cast<double>(element_bytes(dtype));
  const spec::Batching batching = spec::batching_of(job, phase);
  const std::int64_t length = job.max_sequence_length();
  const std::int64_t sequences = batching.tokens > 0
                                     ? std::max<std::int64_t>(1, batching.tokens / length)
                                     : batching.rows * batching.sequences_of_row;
  model.batch = {static_cast<double>(sequences), static_cast<double>(length), width};
  const spec::UpdateShape update = spec::update_shape(job, phase.body);
  model.micro_batches =
      std::max(1.0, static_cast<double>(update.mini_batch * batching.sequences_of_row) /
                        static_cast<double>(sequences));
  model.recompute = recompute_of(model.role.checkpoint_mode);
  model.phase = phase.id;
  const spec::OptimizerSpec optimizer = plan::optimizer_of(model.role, dtype);
  model.gradients = optimizer.gradients;
  for (const spec::FlatUnit& unit : plan::trained_units(model.role)) {
    const spec::UnitState state = optimizer.state(unit);
    if (const spec::StateTensor* master = state.find("master"))
      model.master += static_cast<double>(master->bytes().count());
  }
}

// The formulas start from whole models and states. Returns the job without parallelism except data
// parallelism of the model.
spec::Job with_whole_models(const spec::Job& asked, spec::ModelId model) {
  spec::Job job = asked;
  job.parallel.zero_stage = 0;
  job.trainer.nnodes = 1;
  job.trainer.n_gpus_per_node = asked.data_ranks(model);
  job.parallel.tensor_model_parallel_size = 1;
  job.actor_placement = job.reference_placement = job.critic_placement = job.reward_placement = {};
  job.parallel.sequence_parallel = false;
  // With context parallelism, count as many tokens of whole sequences as its ranks hold together.
  for (const auto& tokens : spec::job_fields::kScoringTokens)
    tokens.of(job) *= asked.context_ranks(model);
  for (const auto& tokens : spec::job_fields::kTrainingTokens)
    tokens.of(job) *= asked.context_ranks(model);
  job.rollout.batch_size = asked.rollout_batch();
  job.parallel.context_parallel_size = 1;
  job.parallel.pipeline_model_parallel_size = 1;
  job.rollout.tensor_model_parallel_size = 0;
  return job;
}

bool shares_batches_alike(const spec::Job& job, spec::ModelId a, spec::ModelId b) {
  return job.data_ranks(a) == job.data_ranks(b) && job.context_ranks(a) == job.context_ranks(b);
}

}  // namespace

CountedParameters count_parameters(const spec::Architecture& shape, spec::Head head) {
  CountedParameters counted;
  for (const spec::FlatUnit& unit : spec::flat_layout(shape, head))
    for (const spec::Parameter& p : unit.parameters)
      part_of(counted, p.module) += static_cast<double>(p.elements());
  return counted;
}

const ModelSizes* JobSizes::trained() const {
  const auto found = std::find_if(models.begin(), models.end(),
                                  [](const ModelSizes& model) { return model.role.trained; });
  return found == models.end() ? nullptr : &*found;
}

std::optional<double> JobSizes::tag(spec::TagId id) const {
  const std::optional<std::size_t> tag = plan.index_of(id);
  if (!tag) return std::nullopt;
  return static_cast<double>(plan.tags[*tag].bytes.count());
}

Result<JobSizes> read_sizes(const spec::Job& asked, plan::Target target) {
  target.capacity = Bytes();
  target.host_memory = Bytes();
  const spec::ModelId main = asked.main_model();
  const spec::Job job = with_whole_models(asked, main);
  JobSizes sizes;
  sizes.task = to_string(job.task);
  const spec::Dtype dtype = plan::compute_dtype(job, target);
  sizes.width = static_cast<double>(element_bytes(dtype));
  sizes.ranks = asked.ranks();
  NEAP_TRY_ASSIGN(sizes.plan, plan::make_plan(job, target));
  const spec::Recipe recipe = spec::describe(job, sizes.plan.modes);
  NEAP_TRY_ASSIGN(const plan::JobModels models,
                  plan::read_models(job, recipe, dtype, 0, target.folders));
  for (const spec::ModelSource& source : recipe.models) {
    ModelSizes model = sizes_of(models.at(source.id));
    if (const spec::Phase* phase = recipe.training_phase(source.id)) {
      const bool as_main = shares_batches_alike(asked, source.id, main);
      const spec::Job own = as_main ? job : with_whole_models(asked, source.id);
      plan::MemoryPlan other;
      if (!as_main) {
        NEAP_TRY_ASSIGN(other, plan::make_plan(own, target));
      }
      const plan::MemoryPlan& planned = as_main ? sizes.plan : other;
      add_training(model, own, *phase, dtype);
      const step::KernelProfile profile = plan::kernel_profile(own, target);
      model.activations =
          count_activations(model, *planned.checkpointing(source.id), dtype, profile);
      model.keeps_gate_activation = !profile.own.take(dtype);
      model.transient = static_cast<double>(
          planned.phases[planned.index_of(phase->id).value()].transient.count());
    }
    sizes.models.push_back(std::move(model));
  }
  if (job.generates()) {
    const step::CacheShape cache = step::cache_shape(job);
    sizes.cached_in_pages = cache.paged();
    sizes.cached_sequences = static_cast<double>(cache.paged() ? cache.pages + 1 : cache.rows);
    sizes.cached_tokens = static_cast<double>(cache.paged() ? step::kPageTokens : cache.row_tokens);
  }
  return sizes;
}

}  // namespace neap::formulas

#include "plan/tags.h"

#include <algorithm>

#include "base/format.h"

namespace neap::plan {
namespace {

// A region of this many granules wastes at most a part in as many by rounding up.
constexpr std::uint64_t kGranulesPerRegion = 32;

Bytes element_bytes(std::int64_t elements, std::uint64_t width) {
  return Bytes(static_cast<std::uint64_t>(elements) * width);
}

std::vector<PartPlan> unit_parts(const std::vector<spec::FlatUnit>& units, std::uint64_t width) {
  std::vector<PartPlan> parts;
  for (const spec::FlatUnit& unit : units)
    parts.push_back({unit.name, Bytes(), element_bytes(unit.elements, width)});
  return parts;
}

// Adds tags one by one; a phase is named by what it needs and what it writes.
class TagBuilder {
 public:
  TagBuilder(const std::vector<std::string>& phases, Bytes granularity)
      : phases_(phases), granularity_(granularity) {}

  void add(std::string name, const std::vector<PartPlan>& parts, Contents contents, Need elsewhere,
           const std::vector<std::string>& needed, const std::vector<std::string>& written) {
    TagPlan tag;
    tag.tag = std::move(name);
    tag.contents = contents;
    tag.regions = pack_regions(parts, granularity_);
    for (const RegionPlan& region : tag.regions) tag.bytes += round_up(region.bytes, granularity_);
    for (const std::string& phase : phases_) {
      tag.need.push_back(contains(needed, phase) ? Need::kNeed : elsewhere);
      tag.write.push_back(contains(written, phase));
    }
    tags_.push_back(std::move(tag));
  }
  [[nodiscard]] std::vector<TagPlan> take() { return std::move(tags_); }

 private:
  static bool contains(const std::vector<std::string>& list, const std::string& item) {
    return std::find(list.begin(), list.end(), item) != list.end();
  }
  const std::vector<std::string>& phases_;
  Bytes granularity_;
  std::vector<TagPlan> tags_;
};

// weights [, adapter], and for a trained model grads and optimizer.
void add_model(TagBuilder& builder, const ModelRole& role, std::uint64_t width,
               const std::vector<std::string>& base_phases,
               const std::vector<std::string>& model_phases, const std::string& train_phase) {
  const std::vector<spec::FlatUnit> base = spec::flat_layout(role.shape, role.head);
  const std::vector<spec::FlatUnit> adapters = spec::lora_layout(role.shape, role.head, role.lora);
  const bool adapted = !adapters.empty();
  const std::vector<std::string> trains =
      role.trained ? std::vector<std::string>{train_phase} : std::vector<std::string>{};
  const bool base_trains = role.trained && !adapted;
  builder.add(role.name + ".weights", unit_parts(base, width),
              base_trains ? Contents::kLive : Contents::kFrozen, Need::kFree, base_phases,
              base_trains ? trains : std::vector<std::string>{});
  if (adapted) {
    builder.add(role.name + ".adapter", unit_parts(adapters, width), Contents::kLive, Need::kFree,
                model_phases, trains);
  }
  if (!role.trained) return;
  const std::vector<spec::FlatUnit>& trained = adapted ? adapters : base;
  builder.add(role.name + ".grads", unit_parts(trained, kGradientWidth), Contents::kScratch,
              Need::kFree, trains, trains);
  // AdamW: two moments; masters where the weights themselves are too coarse to take small updates.
  const std::uint64_t state = 4 + 4 + (width < 4 ? 4 : 0);
  builder.add(role.name + ".optimizer", unit_parts(trained, state), Contents::kLive, Need::kFree,
              trains, trains);
}

Result<ModelRole> read_role(const spec::Job& job, std::string name, const std::string& path,
                            spec::Head head, const spec::ModelConfig* config) {
  ModelRole role;
  role.name = std::move(name);
  role.head = head;
  NEAP_TRY_ASSIGN(role.shape, spec::ModelShape::from_folder(job.resolve(path)));
  if (config != nullptr) {
    role.trained = true;
    role.checkpointing = config->enable_gradient_checkpointing;
    if (config->lora.rank > 0) {
      role.lora = {config->lora.rank, config->lora.target_modules};
      role.lora_alpha = config->lora.alpha;
      NEAP_TRY(spec::check_lora(role.shape, role.lora));
    }
  }
  const std::int64_t length = job.max_sequence_length();
  const std::int64_t limit =
      role.shape.sliding_window > 0
          ? std::min(role.shape.sliding_window, role.shape.max_position_embeddings)
          : role.shape.max_position_embeddings;
  if (length > limit) {
    return Status(ErrorCode::kInvalidArgument,
                  format("data.max_prompt_length {} + data.max_response_length {} is over the {} "
                         "positions of {} ({})",
                         job.data.max_prompt_length, job.data.max_response_length, limit, role.name,
                         job.resolve(path).string()));
  }
  return role;
}

}  // namespace

std::vector<RegionPlan> pack_regions(const std::vector<PartPlan>& parts, Bytes granularity) {
  std::vector<RegionPlan> regions;
  const Bytes enough = granularity * kGranulesPerRegion;
  for (const PartPlan& part : parts) {
    if (regions.empty() || regions.back().bytes >= enough)
      regions.push_back({part.name, Bytes(), {}});
    RegionPlan& region = regions.back();
    PartPlan placed = part;
    placed.offset = round_up(region.bytes, kPartAlignment);
    region.bytes = placed.offset + placed.bytes;
    region.parts.push_back(std::move(placed));
  }
  for (RegionPlan& region : regions) {
    if (region.parts.size() > 1)
      region.name = region.parts.front().name + ".." + region.parts.back().name;
  }
  return regions;
}

std::uint64_t compute_width(const spec::Job& job, const Target& target) {
  if (job.device.dtype == "auto") return target.cuda ? 2 : 4;
  return job.device.dtype == "bfloat16" ? 2 : 4;
}

Result<JobModels> read_models(const spec::Job& job) {
  JobModels models;
  if (job.task == "reward") {
    NEAP_TRY_ASSIGN(models.reward, read_role(job, "reward", job.actor_model.path,
                                             spec::Head::kScalar, &job.actor_model));
    return models;
  }
  NEAP_TRY_ASSIGN(models.actor, read_role(job, "actor", job.actor_model.path,
                                          spec::Head::kLanguageModel, &job.actor_model));
  if (!job.has_rollout()) return models;
  if (job.uses_reference() && !job.reference_is_actor_base()) {
    NEAP_TRY_ASSIGN(models.reference, read_role(job, "reference", job.reference_path(),
                                                spec::Head::kLanguageModel, nullptr));
    if (models.reference->shape.vocab_size != models.actor->shape.vocab_size) {
      return Status(ErrorCode::kInvalidArgument,
                    format("The reference model has a vocabulary of {}, the actor one of {}: their "
                           "log-probabilities cannot be compared",
                           models.reference->shape.vocab_size, models.actor->shape.vocab_size));
    }
  }
  NEAP_TRY_ASSIGN(models.reward,
                  read_role(job, "reward", job.reward_model.path, spec::Head::kScalar, nullptr));
  if (job.has_critic()) {
    NEAP_TRY_ASSIGN(models.critic, read_role(job, "critic", job.critic_path(), spec::Head::kScalar,
                                             &job.critic.model));
  }
  return models;
}

std::vector<std::string> phase_names(const spec::Job& job) {
  if (!job.has_rollout()) return {"train", "validate"};
  std::vector<std::string> names = {"generate", "actor_logp"};
  if (job.uses_reference()) names.emplace_back("ref_logp");
  if (job.has_critic()) names.emplace_back("values");
  names.emplace_back("rewards");
  if (job.has_critic()) names.emplace_back("train_critic");
  names.emplace_back("train_actor");
  return names;
}

std::vector<TagPlan> build_tags(const spec::Job& job, const JobModels& models, const Target& target,
                                const std::vector<std::string>& phases) {
  TagBuilder builder(phases, target.granularity);
  const std::uint64_t width = compute_width(job, target);
  if (!job.has_rollout()) {
    const ModelRole& role = job.task == "reward" ? *models.reward : *models.actor;
    add_model(builder, role, width, phases, phases, "train");
    return builder.take();
  }
  const std::vector<std::string> actor_phases = {"generate", "actor_logp", "train_actor"};
  std::vector<std::string> base_phases = actor_phases;
  if (job.reference_is_actor_base()) base_phases.emplace_back("ref_logp");
  add_model(builder, *models.actor, width, base_phases, actor_phases, "train_actor");
  const spec::ModelShape& shape = models.actor->shape;
  // Keys and values, a row of num_key_value_heads * head_dim each, for every layer and position.
  const std::int64_t kv_elements = 2 * shape.num_hidden_layers * shape.num_key_value_heads *
                                   shape.head_dim * job.rollout_batch() * job.max_sequence_length();
  builder.add("rollout.kv", {{"kv", Bytes(), element_bytes(kv_elements, width)}},
              Contents::kScratch, Need::kDrop, {"generate"}, {"generate"});
  if (models.reference)
    add_model(builder, *models.reference, width, {"ref_logp"}, {"ref_logp"}, "");
  if (models.critic) {
    const std::vector<std::string> critic_phases = {"values", "train_critic"};
    add_model(builder, *models.critic, width, critic_phases, critic_phases, "train_critic");
  }
  add_model(builder, *models.reward, width, {"rewards"}, {"rewards"}, "");
  return builder.take();
}

}  // namespace neap::plan

#include "formulas/measured.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace neap::formulas {
namespace {

using spec::TagKind;

// Adds the measurements of two parts; none if a part has none.
std::optional<Measurement> operator+(const std::optional<Measurement>& a,
                                     const std::optional<Measurement>& b) {
  if (!a || !b) return std::nullopt;
  return Measurement{a->value + b->value, a->source + ", " + b->source};
}

// Fills the lines that follow from tags and temporaries of a rank.
class RankLines {
 public:
  using Put = std::function<void(std::string_view id, const Measurement& value)>;

  /// `tags_from`, `temporaries_from`: sources named with the values.
  RankLines(const JobSizes& sizes, const RankMemory& memory, std::string tags_from,
            std::string temporaries_from, Put put)
      : sizes_(sizes),
        memory_(memory),
        tags_from_(std::move(tags_from)),
        temporaries_from_(std::move(temporaries_from)),
        put_(std::move(put)) {}

  void add_whole(const ModelSizes& model) const {
    const std::string name = model.role.name();
    const auto of = [&](std::initializer_list<TagKind> kinds) { return tags({&model}, kinds); };
    set(name + ".weights", of({TagKind::kWeights}));
    if (!model.role.trained) return;
    set(name + ".adapter", of({TagKind::kAdapter}));
    set(name + ".gradients", of({TagKind::kGradients}));
    set(name + ".mixed_gradients", of({TagKind::kGradients}));
    set(name + ".optimizer", of({TagKind::kOptimizer}));
    set(name + ".states", of(kStates));
    set(name + ".transient", temporaries(model));
  }

  /// Adds a rank's shard of a model with its own parallel sizes.
  void add_part(const ModelSizes& model) const {
    const std::string name = model.role.name() + ".rank_";
    set(name + "weights", tags({&model}, kWeights));
    if (!model.role.trained) return;
    set(name + "gradients", tags({&model}, {TagKind::kGradients}));
    set(name + "optimizer", tags({&model}, {TagKind::kOptimizer}));
    set(name + "states", tags({&model}, kStates));
  }

  void add_cache() const { set("rollout.kv", tag({TagKind::kKeyValues})); }

  void add_rank() const {
    std::vector<const ModelSizes*> all;
    std::optional<Measurement> largest;  // largest temporaries of any training phase
    bool every = true;
    for (const ModelSizes& model : sizes_.models) {
      all.push_back(&model);
      if (!model.role.trained) continue;
      const std::optional<Measurement> of = temporaries(model);
      every = every && of;
      if (of && (!largest || of->value > largest->value)) largest = of;
    }
    set("rank.weights", tags(all, kWeights));
    set("rank.gradients", tags(all, {TagKind::kGradients}));
    set("rank.optimizer", tags(all, {TagKind::kOptimizer}));
    set("rank.states", tags(all, kStates));
    if (every) set("rank.total", tags(all, kStates) + largest);
  }

  void add_generation() const {
    const auto kv = tag({TagKind::kKeyValues});
    set("rank.kv", kv);
    set("rank.generation", tags({&sizes_.models.front()}, kWeights) + kv);
  }

 private:
  static constexpr std::initializer_list<TagKind> kWeights = {TagKind::kWeights, TagKind::kAdapter};
  static constexpr std::initializer_list<TagKind> kStates = {
      TagKind::kWeights, TagKind::kAdapter, TagKind::kGradients, TagKind::kOptimizer};

  void set(std::string_view id, const std::optional<Measurement>& value) const {
    if (value) put_(id, *value);
  }

  [[nodiscard]] std::optional<Measurement> tag(spec::TagId id) const {
    const auto found = memory_.tags.find(to_string(id));
    if (found == memory_.tags.end()) return std::nullopt;
    return Measurement{found->second, tags_from_ + ": " + found->first};
  }
  // Sum of the tags that the models have in their plan without a capacity limit.
  [[nodiscard]] std::optional<Measurement> tags(const std::vector<const ModelSizes*>& models,
                                                std::initializer_list<TagKind> kinds) const {
    std::optional<Measurement> sum;
    for (const ModelSizes* model : models) {
      for (const TagKind kind : kinds) {
        const spec::TagId id{kind, model->role.id};
        if (!sizes_.tag(id)) continue;
        const std::optional<Measurement> part = tag(id);
        if (!part) return std::nullopt;
        sum = sum ? sum + part : part;
      }
    }
    return sum;
  }
  [[nodiscard]] std::optional<Measurement> temporaries(const ModelSizes& model) const {
    const auto found = memory_.temporaries.find(to_string(model.phase.value()));
    if (found == memory_.temporaries.end()) return std::nullopt;
    return Measurement{found->second, temporaries_from_ + ": " + found->first};
  }

  const JobSizes& sizes_;
  const RankMemory& memory_;
  std::string tags_from_, temporaries_from_;
  Put put_;
};

}  // namespace

Degrees degrees_of(const spec::Job& job, spec::ModelId model) {
  const spec::ModelPlacement of = job.placement(model);
  return {.tensor = of.tensor_model_parallel_size,
          .pipeline = of.pipeline_model_parallel_size,
          .chunks = of.pipeline_model_parallel_size > 1
                        ? job.parallel.virtual_pipeline_model_parallel_size
                        : 1,
          .zero_bubble = of.pipeline_model_parallel_size > 1 && job.parallel.zero_bubble(),
          .data = 0,
          .zero = of.zero_stage,
          .sequence_parallel = job.divides_rows(model)};
}

DegreesOfModels own_degrees_of(const spec::Job& job) {
  DegreesOfModels out;
  if (job.places_models_alike()) return out;
  for (const spec::ModelId model : job.models()) out.emplace(model, degrees_of(job, model));
  return out;
}

void add_measured(const spec::Job& job, const JobSizes& sizes, const RunRecords& run,
                  Sheet& sheet) {
  const RankLines planned(sizes, run.planned, "", "",
                          [&](std::string_view id, const Measurement& of) {
                            Line* line = sheet.find(id);
                            if (line != nullptr && !line->counted) line->counted = of.value;
                          });
  // The formulas assume that rollout uses the same parallel sizes as training.
  const bool generates_alike = !job.has_generation_placement();
  const RankLines measured(sizes, run.measured, run.tags_from, run.temporaries_from,
                           [&](std::string_view id, const Measurement& of) {
                             if (Line* line = sheet.find(id)) line->measured = of;
                           });
  for (const RankLines& lines : {planned, measured}) {
    for (const ModelSizes& model : sizes.models) lines.add_part(model);
    lines.add_rank();
    if (generates_alike) lines.add_generation();
  }
  // The sheet counts whole sequences, so context parallelism has no measurement.
  const auto divided = [&](spec::ModelId model) {
    const spec::Mesh mesh = job.mesh(model);
    return mesh.size(spec::Axis::kTensor) > 1 || mesh.size(spec::Axis::kPipe) > 1 ||
           mesh.size(spec::Axis::kContext) > 1 ||
           (job.placement(model).zero_stage > 0 && job.ranks() > 1);
  };
  for (const ModelSizes& model : sizes.models)
    if (!divided(model.role.id)) measured.add_whole(model);
  if (!divided(job.main_model())) measured.add_cache();
}

}  // namespace neap::formulas

// The sections for one rank, and the table by number of ranks.
#include <algorithm>
#include <array>

#include "base/format.h"
#include "formulas/sheet_builder.h"

namespace neap::formulas {

namespace {

States operator+(const States& a, const States& b) {
  return {a.weights + b.weights, a.gradients + b.gradients, a.optimizer + b.optimizer};
}

// "w N / t / d": a rank's bytes of `letter`. ZeRO shards them from a given stage on.
std::string part_formula(const char* bytes, const char* letter, const Degrees& of,
                         std::int64_t stage) {
  const std::string part = of.pipeline > 1 ? "(l / p x layer + embedding) / t"
                           : of.tensor > 1 ? std::string(letter) + " / t"
                                           : letter;
  return format("{} {}{}", bytes, part, of.zero >= stage && of.data > 1 ? " / d" : "");
}

}  // namespace

States SheetBuilder::rank_states(const ModelSizes& model, std::int64_t stage, double ranks,
                                 double gradient_bytes) const {
  ParameterBytes trained_bytes = bytes();
  trained_bytes.gradient = gradient_bytes;
  const ParameterBytes frozen_bytes{sizes_.width, 0, 0};
  const Degrees& of = degrees(model);
  const CountedParameters& p = model.parameters;
  const double rest = of.pipeline > 1 ? p.embedding : p.embedding + p.head;
  const double n =
      stage_parameters(p.layers() / model.letters.layers, model.letters.layers, rest, of);
  const bool whole = model.role.trained && model.adapter == 0;
  const double adapters = model.adapter / static_cast<double>(of.tensor * of.pipeline);
  return states(n, whole ? trained_bytes : frozen_bytes, stage, ranks) +
         states(adapters, trained_bytes, stage, ranks);
}

States SheetBuilder::rank_states() const {
  States sum;
  for (const ModelSizes& model : sizes_.models) {
    const Degrees& of = degrees(model);
    sum = sum + rank_states(model, of.zero, static_cast<double>(of.data), bytes().gradient);
  }
  return sum;
}

double SheetBuilder::tags(spec::TagKind kind) const {
  double sum = 0;
  for (const ModelSizes& model : sizes_.models) sum += tag(model, kind).value_or(0);
  return sum;
}

Line& SheetBuilder::add_rank_line(const char* id, const char* term, std::string formula,
                                  double value, std::optional<double> counted, const char* why) {
  return add({std::string("rank.") + id, term, std::move(formula), "", Quantity::kBytes, value,
              unless_divided(counted), why});
}

void SheetBuilder::add_rank_part(const ModelSizes& model) {
  const Degrees& of = degrees(model);
  const std::string name = model.role.name();
  const States s = rank_states(model, of.zero, static_cast<double>(of.data), bytes().gradient);
  const char* trained = model.adapter > 0 ? "N_t" : "N";
  begin(format("A rank's part of {}", name));
  const auto line = [&](const char* id, const char* term, std::string formula, double value) {
    add({name + ".rank_" + id,
         term,
         std::move(formula),
         "",
         Quantity::kBytes,
         value,
         {},
         "the terms above"});
  };
  line("weights", "weights", part_formula("w", "N", of, 3), s.weights);
  if (!model.role.trained) return;
  line("gradients", "gradients", part_formula("w", trained, of, 2), s.gradients);
  line("optimizer", "optimizer states", part_formula("K", trained, of, 1), s.optimizer);
  line("states", "model states", "sum", s.sum());
}

void SheetBuilder::add_rank_states() {
  const States s = rank_states();
  const auto formula = [&](const char* bytes_letter, const char* letter, std::int64_t stage) {
    return alike_ ? part_formula(bytes_letter, letter, degrees(sizes_.models.front()), stage)
                  : "sum of the models'";
  };
  const double weights = tags(spec::TagKind::kWeights) + tags(spec::TagKind::kAdapter);
  const double gradients = tags(spec::TagKind::kGradients),
               optimizer = tags(spec::TagKind::kOptimizer);
  add_rank_line("weights", "weights", formula("w", "N", 3), s.weights, weights);
  add_rank_line("gradients", "gradients", formula("w", trained_letter(), 2), s.gradients,
                gradients);
  add_rank_line("optimizer", "optimizer states", formula("K", trained_letter(), 1), s.optimizer,
                optimizer);
  add_rank_line("states", "model states", "sum", s.sum(), weights + gradients + optimizer);
}

void SheetBuilder::add_rank_rest() {
  const States s = rank_states();
  double kept = 0, kept_counted = 0;
  std::string kept_formula;
  for (const ModelSizes& model : sizes_.models) {
    if (!model.role.trained) continue;
    const Degrees& of = degrees(model);
    const double value =
        activations(model.letters, model.batch, model.recompute, of, model.micro_batches);
    kept_counted = std::max(kept_counted, model.activations.planned);
    if (value <= kept) continue;
    kept = value;
    kept_formula = std::string(of.chunks > 1     ? "min(p + (p - 1) / c, m) l / p x "
                               : of.pipeline > 1 ? "min(p, m) l / p x "
                                                 : "l x ") +
                   layer_formula(model.recompute, of);
    if (!alike_) kept_formula = format("{}, of {}", kept_formula, model.role.name());
  }
  if (sizes_.trained() != nullptr) {
    add_rank_line("activations", "activations", kept_formula, kept, kept_counted);
    add_rank_line("total", "training: states and activations", "sum", s.sum() + kept,
                  tags(spec::TagKind::kWeights) + tags(spec::TagKind::kAdapter) +
                      tags(spec::TagKind::kGradients) + tags(spec::TagKind::kOptimizer) +
                      largest_training_transient(),
                  "the largest temporaries of training instead of activations; the terms above");
  }
  if (sizes_.cached_sequences > 0) add_generation();
  if (sizes_.trained() != nullptr) add_bubble(*sizes_.trained());
}

void SheetBuilder::add_bubble(const ModelSizes& model) {
  const Degrees& of = degrees(model);
  if (of.pipeline == 1) return;
  add({"rank.bubble", "idle share of the pipeline",
       of.zero_bubble  ? "(p - 1) / (3 m)"
       : of.chunks > 1 ? "(p - 1) / (m c)"
                       : "(p - 1) / m",
       of.zero_bubble  ? "Qi, 2.3"
       : of.chunks > 1 ? "Megatron, 2.2.2"
                       : "Megatron, 2.2.1",
       Quantity::kRatio, pipeline_bubble(of, model.micro_batches)});
}

double SheetBuilder::largest_training_transient() const {
  double largest = 0;
  for (const ModelSizes& model : sizes_.models) largest = std::max(largest, model.transient);
  return largest;
}

// In rollout, the ranks of one replica together hold the actor's whole weights.
void SheetBuilder::add_generation() {
  const ModelSizes& actor = sizes_.models.front();
  const Degrees& of = degrees(actor);
  const auto parts = static_cast<double>(of.tensor * of.pipeline);
  const double cache =
      kv_cache(actor.letters, sizes_.cached_sequences, sizes_.cached_tokens, sizes_.width) / parts;
  const double weights = sizes_.width * (actor.parameters.sum() + actor.adapter) / parts;
  const std::string divided = parts > 1 ? " / (t p)" : "";
  const auto kv = sizes_.tag({spec::TagKind::kKeyValues});
  add_rank_line("kv", "KV cache", cache_formula() + divided, cache, kv);
  add_rank_line("generation", "generation: weights and KV cache", "w N" + divided + " + KV cache",
                weights + cache,
                tag(actor, spec::TagKind::kWeights).value_or(0) +
                    tag(actor, spec::TagKind::kAdapter).value_or(0) + kv.value_or(0));
}

void SheetBuilder::add_by_ranks() {
  const ModelSizes* trained = sizes_.trained();
  if (trained == nullptr) return;
  StatesByRanks& table = sheet_.by_ranks;
  table.whole = std::all_of(degrees_.begin(), degrees_.end(), [](const auto& of) {
    return of.second.tensor == 1 && of.second.pipeline == 1;
  });
  for (std::int64_t ranks = 1; ranks <= 1024; ranks *= 2) table.ranks.push_back(ranks);
  const ParameterBytes b = bytes();
  const auto rows = [&](double gradient, const char* mark) {
    for (std::int64_t stage = 0; stage <= 3; ++stage) {
      const auto term = [&](double bytes_of, std::int64_t from) {
        return format("{} {}{}", number(bytes_of), from == 3 ? "N" : trained_letter(),
                      stage >= from ? " / d" : "");
      };
      StatesByRanks::Row row{
          format("ZeRO-{}{}", stage, mark),
          format("{} + {} + {}", term(b.weight, 3), term(gradient, 2), term(b.optimizer, 1)),
          {}};
      for (const std::int64_t ranks : table.ranks) {
        double& sum = row.bytes.emplace_back();
        for (const ModelSizes& model : sizes_.models)
          sum += rank_states(model, stage, static_cast<double>(ranks), gradient).sum();
      }
      table.rows.push_back(std::move(row));
    }
  };
  rows(b.gradient, "");
  const auto own = static_cast<double>(element_bytes(trained->gradients));
  if (own != b.gradient) rows(own, own > 2 ? ", float32 gradients" : ", bfloat16 gradients");
  if (table.whole) add_counted_slices();
}

// Adds the bytes of ZeRO shards that a run with this number of ranks reserves, without the units in
// use.
void SheetBuilder::add_counted_slices() {
  StatesByRanks& table = sheet_.by_ranks;
  const double adapters = tags(spec::TagKind::kAdapter);
  const double weights = tags(spec::TagKind::kWeights) + adapters;
  const spec::Dtype dtype = sizes_.width < 4 ? spec::Dtype::kBfloat16 : spec::Dtype::kFloat32;
  constexpr std::array kHeld = {"weights + gradients + largest slice", "weights + largest slices",
                                "largest slices"};
  for (const std::int64_t stage : {1, 2, 3}) {
    StatesByRanks::Row row{
        format("ZeRO-{}, counted", stage), kHeld[static_cast<std::size_t>(stage - 1)], {}};
    for (const std::int64_t ranks : table.ranks) {
      const bool sliced = spec::DataParallel{ranks, stage}.slices_weights();
      double bytes = sliced ? adapters : weights;
      for (const ModelSizes& model : sizes_.models) {
        plan::ModelRole role = model.role;
        role.ranks = {ranks, stage};
        if (sliced)
          bytes += static_cast<double>(plan::weight_slices(role, dtype).slice_elements()) *
                   static_cast<double>(element_bytes(dtype));
        if (!model.role.trained) continue;
        const spec::StatePlacement placement = plan::placement_of(role, dtype);
        for (const spec::StatePart& part : placement.parts())
          bytes += static_cast<double>(part.bytes.count());
        bytes += placement.slices_gradients()
                     ? static_cast<double>(placement.slice_elements()) *
                           static_cast<double>(element_bytes(placement.optimizer().gradients))
                     : tag(model, spec::TagKind::kGradients).value_or(0);
      }
      row.bytes.push_back(bytes);
    }
    table.rows.push_back(std::move(row));
  }
}

}  // namespace neap::formulas

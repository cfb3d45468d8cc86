#include "formulas/sheet.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "formulas/reasons.h"
#include "formulas/sheet_builder.h"

namespace neap::formulas {
namespace {

constexpr const char* kParametersSource = "Transformer memory, parameters";
constexpr const char* kMixedSource = "Transformer memory, mixed precision";
constexpr const char* kStatesSource = "Habana; ZeRO, 3.1";
constexpr const char* kLayerSource = "Korthikanti, table 2";
constexpr const char* kRounding = "regions are rounded up to pages";

// Adds rounding as a reason for the difference of a tag.
std::string or_rounding(const std::string& reason) {
  return reason.empty() ? kRounding : reason;
}

std::string letters_of(const Degrees& of) {
  return format("t = {}, p = {}{}, d = {}, ZeRO-{}{}", of.tensor, of.pipeline,
                of.chunks > 1    ? format(" of c = {} chunks", of.chunks)
                : of.zero_bubble ? " (zero bubble)"
                                 : "",
                of.data, of.zero, of.sequence_parallel ? ", sequence parallel" : "");
}

// Fills in the number of ranks that share each shard of a model.
Result<Degrees> complete(const JobSizes& sizes, Degrees degrees) {
  const std::int64_t parts = degrees.tensor * degrees.pipeline;
  if (degrees.data != 0 || parts <= 0) return degrees;
  if (sizes.ranks > 1 && sizes.ranks % parts != 0)
    return Status(ErrorCode::kInvalidArgument,
                  format("The job's {} ranks are no multiple of {} tensor-parallel ranks x {} "
                         "pipeline stages",
                         sizes.ranks, degrees.tensor, degrees.pipeline));
  degrees.data = std::max<std::int64_t>(1, sizes.ranks / parts);
  return degrees;
}

}  // namespace

Sheet SheetBuilder::build() {
  sheet_.letters = letters();
  for (const ModelSizes& model : sizes_.models) {
    if (!shown_before(model)) add_parameters(model);
    add_states(model);
    if (model.role.trained) {
      add_mixed_precision(model);
      add_activations(model);
    }
  }
  if (sizes_.cached_sequences > 0) add_cache();
  if (!alike_)
    for (const ModelSizes& model : sizes_.models) add_rank_part(model);
  const Degrees& main = degrees(sizes_.models.front());
  begin(divided() ? format("A rank of {}", main.tensor * main.pipeline * main.data) : "A rank");
  add_rank_states();
  add_rank_rest();
  add_by_ranks();
  return std::move(sheet_);
}

Line& SheetBuilder::add(Line line) {
  if (!line.counted || !differs(line.value, *line.counted)) line.why.clear();
  return sheet_.sections.back().lines.emplace_back(std::move(line));
}

std::string number(double value) {
  return value == std::floor(value) ? format("{:.0f}", value) : format("{:.4g}", value);
}

bool SheetBuilder::shown_before(const ModelSizes& model) const {
  for (const ModelSizes& other : sizes_.models) {
    if (&other == &model) break;
    if (other.role.head == model.role.head && other.role.shape.config == model.role.shape.config)
      return true;
  }
  return false;
}

const char* SheetBuilder::trained_letter() const {
  return std::all_of(sizes_.models.begin(), sizes_.models.end(),
                     [](const ModelSizes& m) { return m.role.trained && m.adapter == 0; })
             ? "N"
             : "N_t";
}

std::string SheetBuilder::layer_formula(Recompute recompute, const Degrees& degrees) const {
  const bool wide = sizes_.width > 2;
  if (recompute == Recompute::kFull) return wide ? "4 s b h" : "2 s b h";
  const std::string sbh = wide ? "2 s b h" : "s b h";
  const bool scores = recompute == Recompute::kNone;
  if (degrees.tensor > 1 && !degrees.sequence_parallel)
    return sbh + (scores ? " (10 + 24 / t + 5 a s / (h t))" : " (10 + 24 / t)");
  const std::string part = degrees.tensor > 1 ? " / t" : "";
  return scores ? sbh + part + " (34 + 5 a s / h)" : (wide ? "68 s b h" : "34 s b h") + part;
}

std::string SheetBuilder::letters() const {
  std::string out;
  for (const ModelSizes& model : sizes_.models) {
    const Decoder& d = model.letters;
    out += format("{} ({}): l = {}, h = {}, a = {}, v = {}, N = {}", model.role.name(),
                  model.role.shape.model_type, number(d.layers), number(d.hidden), number(d.heads),
                  number(d.vocabulary), number(model.parameters.sum()));
    if (model.adapter > 0) out += format(", N_t = {} of LoRA", number(model.adapter));
    if (model.role.trained)
      out += format("; b = {}, s = {}, m = {:.4g} micro-batches an update",
                    number(model.batch.sequences), number(model.batch.length), model.micro_batches);
    out += alike_ ? "\n" : format("; {}\n", letters_of(degrees(model)));
  }
  return out + format("w = {} bytes a weight, K = {} (Adam){}\n", number(sizes_.width),
                      number(bytes().optimizer),
                      alike_ ? "; " + letters_of(degrees(sizes_.models.front())) : "");
}

void SheetBuilder::add_parameters(const ModelSizes& model) {
  const Decoder& d = model.letters;
  const CountedParameters& counted = model.parameters;
  const spec::Architecture& a = model.role.shape;
  const std::string name = model.role.name();
  begin(format("Parameters of {}", name));
  const auto line = [&](const char* id, const char* term, const char* formula, double value,
                        double count, std::string why) {
    add({name + "." + id, term, formula, kParametersSource, Quantity::kParameters, value, count,
         std::move(why)});
  };
  line("attention", "attention", "l (4 h^2 + 4 h)", attention_parameters(d), counted.attention,
       attention_reason(a));
  line("mlp", "MLP", "l (8 h^2 + 5 h)", mlp_parameters(d), counted.mlp, mlp_reason(a));
  line("norms", "norms", "l 4 h", norm_parameters(d), counted.norms, norm_reason(a));
  line("embedding", "embedding", "v h", embedding_parameters(d), counted.embedding,
       embedding_reason(a));
  line("head", "head", "0 (shares the table)", 0, counted.head, head_reason(a, model.role.head));
  line("parameters", "all", "l (12 h^2 + 13 h) + v h", parameters(d), counted.sum(),
       "the terms above");
  line("approximate", "layers, approximately", "12 l h^2", 12 * d.layers * d.hidden * d.hidden,
       counted.layers(), "terms of h are left out; the terms above");
}

void SheetBuilder::add_states(const ModelSizes& model) {
  const std::string name = model.role.name();
  const bool adapted = model.adapter > 0;
  const double n = model.parameters.sum(), trained = model.trained();
  const ParameterBytes b = bytes();
  begin(format("Model states of {}, whole on one rank", name));
  add({name + ".weights", "weights", "w N", kStatesSource, Quantity::kBytes, b.weight * n,
       tag(model, spec::TagKind::kWeights), kRounding});
  if (!model.role.trained) return;
  if (adapted)
    add({name + ".adapter", "adapters", "w N_t", "as weights", Quantity::kBytes, b.weight * trained,
         tag(model, spec::TagKind::kAdapter), kRounding});
  const char* letter = adapted ? "N_t" : "N";
  const auto gradients = tag(model, spec::TagKind::kGradients),
             optimizer = tag(model, spec::TagKind::kOptimizer);
  add({name + ".gradients", "gradients", format("w {}", letter), kStatesSource, Quantity::kBytes,
       b.gradient * trained, gradients, or_rounding(gradient_reason(model))});
  add({name + ".optimizer", "optimizer states", format("K {}", letter), kStatesSource,
       Quantity::kBytes, b.optimizer * trained, optimizer, or_rounding(optimizer_reason(model))});
  std::optional<double> sum;
  if (gradients && optimizer)
    sum = tag(model, spec::TagKind::kWeights).value_or(0) +
          tag(model, spec::TagKind::kAdapter).value_or(0) + *gradients + *optimizer;
  const double value =
      b.weight * n + (adapted ? b.weight * trained : 0) + (b.gradient + b.optimizer) * trained;
  add({name + ".states", "all", adapted ? "w N + (2 w + K) N_t" : "(2 w + K) N", kStatesSource,
       Quantity::kBytes, value, sum, "the terms above"});
}

// Counts one float32 copy with the weights and one with the gradients: 20 N.
void SheetBuilder::add_mixed_precision(const ModelSizes& model) {
  if (sizes_.width >= 4 || model.adapter > 0) return;
  const std::string name = model.role.name();
  const double n = model.parameters.sum();
  const auto weights = tag(model, spec::TagKind::kWeights),
             optimizer = tag(model, spec::TagKind::kOptimizer);
  begin(format("Model states of {}, float32 copies counted with weights and gradients", name));
  const auto line = [&](const char* id, const char* term, const char* formula, double bytes,
                        std::optional<double> counted, std::string why) {
    add({name + ".mixed_" + id, term, formula, kMixedSource, Quantity::kBytes, bytes * n, counted,
         std::move(why)});
  };
  line("weights", "weights and their copy", "(2 + 4) N", 6,
       weights ? std::optional(*weights + model.master) : std::nullopt,
       or_rounding(optimizer_reason(model)));
  line("gradients", "gradients and their copy", "(2 + 4) N", 6,
       tag(model, spec::TagKind::kGradients), "gradients have one type");
  line("moments", "moments", "(4 + 4) N", 8,
       optimizer ? std::optional(*optimizer - model.master) : std::nullopt,
       or_rounding(optimizer_reason(model)));
}

void SheetBuilder::add_activations(const ModelSizes& model) {
  const std::string name = model.role.name();
  const CountedActivations& counted = model.activations;
  begin(format("Activations of {}, a micro-batch", name));
  const auto layer = [&](const char* id, const char* term, Recompute recompute, double count) {
    add({name + ".layer_" + id, term, layer_formula(recompute, {}), kLayerSource, Quantity::kBytes,
         layer_activations(model.letters, model.batch, recompute), count,
         activation_reason(model, recompute)});
  };
  layer("none", "a layer", Recompute::kNone, counted.none);
  layer("selective", "a layer, selective recomputation", Recompute::kSelective, counted.selective);
  layer("full", "a layer, full recomputation", Recompute::kFull, counted.full);
  if (degrees(model).tensor > 1) add_divided_activations(model);
  const double layers =
      model.letters.layers * layer_activations(model.letters, model.batch, model.recompute);
  const double output = output_activations(model.letters, model.batch);
  add({name + ".activations", "all layers", "l x " + layer_formula(model.recompute, {}),
       "Transformer memory, activations", Quantity::kBytes, layers, counted.planned,
       activation_reason(model, model.recompute)});
  add({name + ".output", "norm, head and loss",
       sizes_.width > 2 ? "8 s b h (1 + v / h)" : "4 s b h (1 + v / h)", "Korthikanti, 4.3",
       Quantity::kBytes, output});
  const spec::PhaseId phase = model.phase.value();
  add({name + ".transient", format("temporaries of {}", to_string(phase)), "the last two lines", "",
       Quantity::kBytes, layers + output, model.transient,
       "as the terms above; logits in chunks, of counted tokens only; the backward of a block and "
       "workspaces of kernels are on top"});
}

void SheetBuilder::add_divided_activations(const ModelSizes& model) {
  Degrees whole = degrees(model), divided = whole;
  whole.sequence_parallel = false;
  divided.sequence_parallel = true;
  const auto layer = [&](const char* id, const char* term, Recompute recompute,
                         const Degrees& degrees) {
    add({model.role.name() + ".layer_" + id, term, layer_formula(recompute, degrees), kLayerSource,
         Quantity::kBytes, layer_activations(model.letters, model.batch, recompute, degrees)});
  };
  layer("tensor", "a layer, tensor parallel", Recompute::kNone, whole);
  layer("tensor_selective", "a layer, tensor parallel, selective", Recompute::kSelective, whole);
  layer("sequence", "a layer, tensor and sequence parallel", Recompute::kNone, divided);
  layer("sequence_selective", "a layer, tensor and sequence parallel, selective",
        Recompute::kSelective, divided);
}

void SheetBuilder::add_cache() {
  const ModelSizes& actor = sizes_.models.front();
  begin("KV cache of a rollout");
  add({"rollout.kv",
       format("{} {} of {} tokens", number(sizes_.cached_sequences),
              sizes_.cached_in_pages ? "pages" : "sequences", number(sizes_.cached_tokens)),
       cache_formula(), "Transformer memory, KV cache", Quantity::kBytes,
       kv_cache(actor.letters, sizes_.cached_sequences, sizes_.cached_tokens, sizes_.width),
       sizes_.tag({spec::TagKind::kKeyValues}), or_rounding(cache_reason(actor.role.shape))});
}

bool differs(double formula, double counted) {
  return std::abs(formula - counted) > 0.002 * std::max(std::abs(formula), std::abs(counted));
}

bool Published::agrees(double formula) const {
  return std::abs(formula - value) <= rounded_to / 2 * (1 + 1e-9);
}

Line* Sheet::find(std::string_view id) {
  for (Section& section : sections)
    for (Line& line : section.lines)
      if (line.id == id) return &line;
  return nullptr;
}
const Line* Sheet::find(std::string_view id) const {
  return const_cast<Sheet*>(this)->find(id);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

Result<Sheet> make_sheet(const JobSizes& sizes, const Degrees& degrees,
                         const DegreesOfModels& own) {
  NEAP_TRY_ASSIGN(const Degrees all, complete(sizes, degrees));
  DegreesOfModels each;
  for (const ModelSizes& model : sizes.models) {
    const auto found = own.find(model.role.id);
    NEAP_TRY_ASSIGN(each[model.role.id], complete(sizes, found == own.end() ? all : found->second));
    NEAP_TRY(check(each[model.role.id], model.letters.layers));
  }
  return SheetBuilder(sizes, std::move(each), own.empty()).build();
}

}  // namespace neap::formulas

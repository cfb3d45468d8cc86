#include "train/model_worker.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>

#include "base/format.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kKindKey = "optimizer";
constexpr const char* kStepsKey = "steps";
constexpr const char* kHead = "score.weight";

std::optional<model::Lora> lora_of(const WorkerSpec& spec) {
  if (spec.lora.rank == 0) return std::nullopt;
  model::Lora lora;
  lora.shape = {spec.lora.rank, spec.lora.target_modules};
  lora.alpha = spec.lora.alpha;
  return lora;
}

}  // namespace

ModelWorker::ModelWorker(bridge::Runtime& runtime, parallel::Communicator& ranks, WorkerSpec spec)
    : runtime_(runtime),
      ranks_(ranks),
      spec_(std::move(spec)),
      shape_(value_or_throw(spec::Architecture::from_folder(spec_.folder))),
      layout_(spec::flat_layout(shape_, spec_.head)) {
  const at::ScalarType dtype = runtime_.compute_dtype();
  std::optional<model::Lora> lora = lora_of(spec_);
  if (lora) adapter_layout_ = spec::lora_layout(shape_, spec_.head, lora->shape);
  weights_ = regions("weights", layout_, dtype);
  if (lora) adapters_ = regions("adapter", adapter_layout_, dtype);
  model::FlatTensors base{weights_, {}};
  if (lora) lora->adapters.weights = adapters_;
  if (spec_.trained) {
    model::FlatTensors& tensors = lora ? lora->adapters : base;
    make_optimizer(tensors.weights, tensors.grads);
  }
  if (lora) {
    base_ =
        std::make_unique<model::Transformer>(shape_, spec_.head, model::FlatTensors{weights_, {}});
  }
  model_ =
      std::make_unique<model::Transformer>(shape_, spec_.head, std::move(base), std::move(lora));
}

void ModelWorker::make_optimizer(const std::vector<at::Tensor>& weights,
                                 std::vector<at::Tensor>& gradients) {
  const spec::OptimizerSpec optimizer = value_or_throw(
      spec::OptimizerSpec::of(spec_.optimizer, model::to_step(runtime_.compute_dtype())));
  gradients = regions("grads", trained_layout(), model::to_aten(optimizer.gradients));
  std::vector<OptimizerUnit> units;
  for (std::size_t i = 0; i < trained_layout().size(); ++i) {
    const spec::FlatUnit& unit = trained_layout()[i];
    const at::Tensor state = runtime_.region(tag("optimizer"), unit.name, at::kByte);
    states_.push_back(state);
    units.push_back(step::make_trained_unit(
        optimizer, unit, static_cast<std::int64_t>(i), weights[i], gradients[i],
        [&](const spec::StateTensor& tensor) { return state_view(state, tensor); }));
  }
  optimizer_ = std::make_unique<Optimizer>(
      spec_.optimizer, optimizer, random_key({spec_.seed, spec_.head == spec::Head::kScalar}),
      std::move(units), ranks_);
}

std::vector<at::Tensor> ModelWorker::regions(const char* part,
                                             const std::vector<spec::FlatUnit>& units,
                                             at::ScalarType dtype) {
  std::vector<at::Tensor> out;
  for (const spec::FlatUnit& unit : units) {
    out.push_back(runtime_.region(tag(part), unit.name, dtype).narrow(0, 0, unit.elements));
  }
  return out;
}

std::unique_ptr<bridge::Runtime::Scope> ModelWorker::hold() {
  std::vector<std::string> tags = {tag("weights")};
  if (has_lora()) tags.push_back(tag("adapter"));
  if (spec_.trained) tags.push_back(tag("optimizer"));
  return runtime_.hold(tags);
}

double ModelWorker::update(double lr, double max_norm) {
  const double norm = optimizer_->reduce_grads(max_norm);
  optimizer_->begin_step();
  runtime_.for_each_window(
      tag("optimizer"), bridge::Access::kWrite,
      [&](std::size_t first, std::size_t count) { optimizer_->step_units(lr, first, count); });
  return norm;
}

void ModelWorker::load() {
  const auto held = hold();
  const bool streamed = optimizer_ && runtime_.streamed(tag("optimizer"));
  for (const auto* tensors : {&weights_, &adapters_}) {
    for (const at::Tensor& flat : *tensors) at::Tensor(flat).zero_();
  }
  if (!streamed) {
    for (const at::Tensor& state : states_) at::Tensor(state).zero_();
  }
  // Where there are masters they take the file's full precision, and the weights are rounded from
  // them. Streamed ones wait on the host until their window comes.
  std::vector<at::Tensor> exact = weights_;
  const bool masters = optimizer_ && !has_lora() && optimizer_->spec().has_master();
  if (masters) {
    const bridge::HostScope host;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      exact[i] = streamed ? at::zeros({layout_[i].elements}, at::dtype(at::kFloat))
                          : optimizer_->units()[i].master();
    }
  }
  read_weights(exact);
  if (has_lora()) initialize_adapters();
  if (optimizer_) {
    runtime_.for_each_window(tag("optimizer"), bridge::Access::kWrite,
                             [&](std::size_t first, std::size_t count) {
                               for (std::size_t i = first; i < first + count; ++i)
                                 start_state(i, masters ? exact[i] : at::Tensor(), streamed);
                             });
    optimizer_->restore_steps(0);
  }
  throw_if_error(held->close());
}

void ModelWorker::start_state(std::size_t i, const at::Tensor& exact, bool streamed) {
  const OptimizerUnit& unit = optimizer_->units()[i];
  if (streamed) at::Tensor(states_[i]).zero_();
  const at::Tensor master = unit.master();
  if (!master.defined()) return;
  if (!exact.defined()) {
    master.copy_(unit.weights);
    return;
  }
  if (streamed) master.copy_(exact);
  unit.weights.copy_(master);
}

void ModelWorker::read_weights(const std::vector<at::Tensor>& flat) {
  if (!model::has_weights(spec_.folder)) {
    const bool scalar = spec_.head == spec::Head::kScalar;
    if (!spec_.trained || has_lora() || (scalar && !spec_.init_head)) {
      throw Error(ErrorCode::kNotFound,
                  format("{} has no weights (model.safetensors). The {} model cannot start from "
                         "random weights",
                         spec_.folder.string(), spec_.role));
    }
    model::Transformer fresh(shape_, spec_.head, {flat, {}});
    model::initialize(fresh, spec_.seed);
    if (ranks_.first())
      log::info(format("{} has no weights: the {} model starts from random weights, seed {}",
                       spec_.folder.string(), spec_.role, spec_.seed));
    return;
  }
  model::LoadReport report = model::load_model(spec_.folder, shape_, spec_.head, flat);
  for (const std::string& name : model::merge_adapter(spec_.folder, shape_, spec_.head, flat))
    std::erase(report.missing, name);
  report_unused(spec_.folder, report);
  if (report.missing.empty()) return;
  if (!spec_.init_head) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has no tensor \"{}\", the scalar head of the {} model: it is a "
                       "language model. Train a reward model first (task = \"reward\"){}",
                       spec_.folder.string(), kHead, spec_.role,
                       spec_.role == "critic"
                           ? ", or set critic.model.init_head = true to start from a head of zeros"
                           : ""));
  }
  if (ranks_.first())
    log::info(format("{} has no scalar head: the {} model's starts at zero", spec_.folder.string(),
                     spec_.role));
}

void ModelWorker::report_unused(const fs::path& folder, const model::LoadReport& report) const {
  constexpr std::size_t kShown = 5;
  if (report.unused.empty() || !ranks_.first()) return;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, report.unused.size()); ++i)
    names += (i == 0 ? "" : ", ") + report.unused[i];
  if (report.unused.size() > kShown) names += ", ...";
  log::warn(format("{}: {} tensors are not used by the {} model: {}", folder.string(),
                   report.unused.size(), spec_.role, names));
}

void ModelWorker::initialize_adapters() {
  model::initialize_adapters(*model_, spec_.seed);
  const bridge::NoAutograd no_autograd;
  for (const model::NamedParameter& adapter : model_->adapters()) {
    if (!adapter.name.ends_with(kHead)) continue;
    for (const model::NamedParameter& own : model_->parameters()) {
      if (own.name == kHead) at::Tensor(adapter.weight).copy_(own.weight);
    }
  }
}

void ModelWorker::expect_agreement() const {
  if (ranks_.alone()) return;
  // The sum of the bit patterns, which one differing bit changes.
  std::int64_t sum = 0;
  for (const auto* tensors : {&weights_, &adapters_}) {
    for (const at::Tensor& flat : *tensors) {
      const at::ScalarType bits = flat.element_size() == 2 ? at::kShort : at::kInt;
      sum += flat.view(bits).sum(at::kLong).item<std::int64_t>();
    }
  }
  ranks_.expect_same(sum, format("The sum over the bits of the {} model's weights", spec_.role));
}

void ModelWorker::save(const fs::path& folder, const fs::path& tokenizer) {
  const auto held = hold();
  const bridge::HostScope host;
  expect_agreement();
  if (ranks_.first()) write(folder, tokenizer);
  throw_if_error(held->close());
}

void ModelWorker::write(const fs::path& folder, const fs::path& tokenizer) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), error.message()));
  }
  model::SaveOptions options;
  options.companions = tokenizer;
  options.origin = spec_.folder;
  model::save_model(folder, shape_, spec_.head, weights_, options);
  if (has_lora()) {
    model::save_adapter(folder, shape_, spec_.head, {spec_.lora.rank, spec_.lora.target_modules},
                        spec_.lora.alpha, adapters_);
  }
  if (!optimizer_) return;
  const auto windows = runtime_.windows(tag("optimizer"), bridge::Access::kRead);
  model::save_tensors(folder / kOptimizerFile, named_states(),
                      {{kKindKey, std::string(to_string(optimizer_->spec().kind))},
                       {kStepsKey, std::to_string(optimizer_->steps())}},
                      [&](std::size_t i) { windows->bring_part(unit_of_state(i)); });
  throw_if_error(windows->close());
}

void ModelWorker::restore(const fs::path& folder) {
  const auto held = hold();
  const bridge::HostScope host;
  for (const auto* tensors : {&weights_, &adapters_}) {
    for (const at::Tensor& flat : *tensors) at::Tensor(flat).zero_();
  }
  const model::LoadReport report = model::load_model(folder, shape_, spec_.head, weights_);
  if (!report.missing.empty()) {
    throw Error(ErrorCode::kCorrupt,
                format("{} has no tensor \"{}\"", folder.string(), report.missing.front()));
  }
  report_unused(folder, report);
  if (has_lora()) {
    model::load_adapter(folder, shape_, spec_.head, {spec_.lora.rank, spec_.lora.target_modules},
                        adapters_);
  }
  if (optimizer_) restore_states(folder / kOptimizerFile);
  throw_if_error(held->close());
}

void ModelWorker::restore_states(const fs::path& file) {
  const std::string wanted(to_string(optimizer_->spec().kind));
  const auto metadata = model::SafetensorsFile::open(file).metadata();
  const auto kind = metadata.find(kKindKey);
  if (kind == metadata.end() || kind->second != wanted) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has the state of the optimizer \"{}\"; the configuration has \"{}\"",
                       file.string(), kind == metadata.end() ? "" : kind->second, wanted));
  }
  const auto windows = runtime_.windows(tag("optimizer"), bridge::Access::kWrite);
  (void)model::load_tensors(file, named_states(),
                            [&](std::size_t i) { windows->bring_part(unit_of_state(i)); });
  throw_if_error(windows->close());
  const auto steps = metadata.find(kStepsKey);
  std::int64_t count = -1;
  if (steps != metadata.end()) {
    const std::string& text = steps->second;
    std::from_chars(text.data(), text.data() + text.size(), count);
  }
  if (count < 0) {
    throw Error(ErrorCode::kCorrupt,
                format("{} does not say how many steps the optimizer has made", file.string()));
  }
  optimizer_->restore_steps(count);
}

std::size_t ModelWorker::unit_of_state(std::size_t tensor) const {
  std::size_t unit = 0;
  for (; tensor >= optimizer_->units()[unit].state.size(); ++unit)
    tensor -= optimizer_->units()[unit].state.size();
  return unit;
}

model::NamedTensors ModelWorker::named_states() const {
  model::NamedTensors out;
  for (const OptimizerUnit& unit : optimizer_->units()) {
    for (std::size_t i = 0; i < unit.state.size(); ++i) {
      const spec::StateTensor& tensor = unit.layout.tensors()[i];
      const std::string& owner =
          tensor.parameter < 0
              ? unit.unit.name
              : unit.unit.parameters[static_cast<std::size_t>(tensor.parameter)].name;
      out.emplace_back(owner + "." + tensor.name, unit.state[i]);
    }
  }
  return out;
}

}  // namespace neap::train

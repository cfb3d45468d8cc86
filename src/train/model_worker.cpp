#include "train/model_worker.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "model/checkpoint.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

using spec::TagKind;

constexpr const char* kHead = "score.weight";

// Host memory of the arena as (elements,).
at::Tensor host_tensor(const arena::HostStorage& storage, std::int64_t elements,
                       at::ScalarType dtype) {
  return at::from_blob(storage.data(), {elements}, at::dtype(dtype));
}

std::optional<model::Lora> lora_of(const WorkerSpec& spec) {
  if (spec.lora.rank == 0) return std::nullopt;
  model::Lora lora;
  lora.shape = spec.lora;
  return lora;
}

}  // namespace

ModelWorker::ModelWorker(bridge::Runtime& runtime, const parallel::Groups& groups, WorkerSpec spec)
    : runtime_(runtime),
      groups_(groups),
      spec_(std::move(spec)),
      layout_(spec::flat_layout(spec_.shape, spec_.head)) {
  const at::ScalarType dtype = runtime_.compute_dtype();
  std::optional<model::Lora> lora = lora_of(spec_);
  if (lora) adapter_layout_ = spec::lora_layout(spec_.shape, spec_.head, lora->shape);
  numbers_ = spec::numbers_in(spec::flat_layout(spec_.whole, spec_.head), layout_);
  if (lora)
    adapter_numbers_ =
        spec::numbers_in(spec::lora_layout(spec_.whole, spec_.head, lora->shape), adapter_layout_);
  if (shard().ranks > 1) {
    const spec::Architecture& whole = spec_.whole;
    cuts_.emplace(whole, shard().ranks,
                  spec::units_of(spec::flat_layout(whole, spec_.head), numbers_), layout_);
    if (lora)
      adapter_cuts_.emplace(
          whole, shard().ranks,
          spec::units_of(spec::lora_layout(whole, spec_.head, lora->shape), adapter_numbers_),
          adapter_layout_);
  }
  weights_ = base_weights();
  if (lora) adapters_ = regions(TagKind::kAdapter, adapter_layout_, dtype);
  model::FlatTensors base{weights_, {}};
  if (lora) lora->adapters.weights = adapters_;
  if (spec_.trained) {
    model::FlatTensors& tensors = lora ? lora->adapters : base;
    make_optimizer(tensors.weights, tensors.grads);
  }
  const std::optional<model::StreamedBase> streamed = streamed_base();
  const bridge::AttentionChoice attention = runtime_.context().attention();
  parallel::Communicator* const tensor = &groups_.tensor();
  if (streamed && spec_.generates) {
    generator_ = std::make_unique<model::Transformer>(spec_.shape, spec_.head,
                                                      model::FlatTensors{gathered_weights(), {}},
                                                      lora, std::nullopt, attention, tensor);
  }
  if (lora) {
    base_ = std::make_unique<model::Transformer>(spec_.shape, spec_.head,
                                                 model::FlatTensors{weights_, {}}, std::nullopt,
                                                 streamed, attention, tensor);
  }
  model_ = std::make_unique<model::Transformer>(spec_.shape, spec_.head, std::move(base),
                                                std::move(lora), streamed, attention, tensor);
  if (gradients_) model_->send_gradients(&*gradients_);
  if (!has_stages()) return;
  links_.emplace(stages());
  model_->ops().set_stages(&*links_);
  if (base_) base_->ops().set_stages(&*links_);
}

std::vector<at::Tensor> ModelWorker::base_weights() {
  const at::ScalarType dtype = runtime_.compute_dtype();
  if (!spec_.streamed) return regions(TagKind::kWeights, layout_, dtype);
  std::vector<at::Tensor> out;
  for (const spec::FlatUnit& unit : layout_) {
    const auto* const storage = hosted(unit);
    out.push_back(storage != nullptr ? host_tensor(*storage->weights, unit.elements, dtype)
                                     : region(TagKind::kWeights, unit, dtype));
  }
  return out;
}

const bridge::StreamedBlocks::Storage* ModelWorker::hosted(const spec::FlatUnit& unit) const {
  if (!spec_.streamed) return nullptr;
  const bridge::StreamedBlocks& blocks = runtime_.streamed_blocks(tag(TagKind::kBuffers));
  if (unit.block >= 0) return &blocks.block(static_cast<std::size_t>(unit.block));
  return blocks.table(unit.name);
}

std::vector<at::Tensor> ModelWorker::gathered_weights() {
  std::vector<at::Tensor> out = weights_;
  for (std::size_t i = 0; i < layout_.size(); ++i)
    if (layout_[i].block >= 0)
      out[i] = region(TagKind::kBlocks, layout_[i], runtime_.compute_dtype());
  return out;
}

std::optional<model::StreamedBase> ModelWorker::streamed_base() {
  if (!spec_.streamed) return std::nullopt;
  bridge::StreamedBlocks& blocks = runtime_.streamed_blocks(tag(TagKind::kBuffers));
  model::StreamedBase out;
  out.slots = &blocks;
  out.table_on_host = hosted(layout_.front()) != nullptr;
  const auto weights = [&](const bridge::StreamedBlocks::Slot& slot) {
    return runtime_.region(tag(TagKind::kBuffers), slot.weights.name, runtime_.compute_dtype());
  };
  const auto gradients = [&](const bridge::StreamedBlocks::Slot& slot) {
    return runtime_.region(tag(TagKind::kBuffers), slot.gradients->name,
                           model::to_aten(optimizer_->spec().gradients));
  };
  for (const bridge::StreamedBlocks::Slot& slot : blocks.slots()) {
    out.memory.push_back(weights(slot));
    if (slot.gradients) out.gradients.push_back(gradients(slot));
    if (slot.inputs)
      out.inputs.push_back(
          runtime_.region(tag(TagKind::kBuffers), slot.inputs->name, runtime_.compute_dtype()));
  }
  if (const auto& slot = blocks.table_slot()) {
    out.table_memory = weights(*slot);
    if (slot->gradients) out.table_gradients = gradients(*slot);
  }
  return out;
}

void ModelWorker::make_optimizer(const std::vector<at::Tensor>& weights,
                                 std::vector<at::Tensor>& gradients) {
  const spec::OptimizerSpec optimizer = value_or_throw(
      spec::OptimizerSpec::of(spec_.optimizer, model::to_step(runtime_.compute_dtype())));
  placement_.emplace(optimizer, trained_layout(),
                     spec::DataParallel{groups_.data().size(), spec_.zero_stage});
  std::vector<OptimizerUnit> units;
  std::vector<bool> rests;  // on the host
  for (std::size_t i = 0; i < trained_layout().size(); ++i) {
    const spec::FlatUnit& layout = trained_layout()[i];
    gradients.push_back(unit_gradients(layout, model::to_aten(optimizer.gradients)));
    OptimizerUnit& unit = units.emplace_back();
    unit.unit = layout;
    unit.index = static_cast<std::int64_t>((has_lora() ? adapter_numbers_ : numbers_)[i]);
    unit.on_host = hosted_trained(layout) != nullptr;
    rests.push_back(unit.on_host);
    unit.weights = weights[i];
    if (!placement_->slices_gradients()) unit.gradients = gradients[i];
  }
  make_pieces(units);
  if (placement_->slices_gradients()) take_gradients(gradients);
  const bool sliced = placement_->sliced();
  if (runtime_.streamed_states(tag(TagKind::kOptimizer)) != nullptr)
    parts_.emplace(*placement_, groups_.data().rank(), std::move(rests));
  optimizer_ = std::make_unique<Optimizer>(
      spec_.optimizer, optimizer, random_key({spec_.seed, spec_.head == spec::Head::kScalar}),
      sliced ? std::move(units) : pieces_, groups_.data(),
      sliced ? std::optional(OptimizerSlice{*placement_, pieces_}) : std::nullopt);
}

void ModelWorker::take_gradients(const std::vector<at::Tensor>& gradients) {
  std::vector<step::GradientSlots<model::AtenOps>::Unit> units;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    units.push_back({trained_layout()[i], gradients[i]});
  slice_ops_.emplace(runtime_.device(), bridge::AttentionChoice{}, &groups_.tensor());
  gradients_.emplace(*slice_ops_, std::move(units), pieces_, spec_.ties_table(), shard(),
                     [this](std::size_t unit, const at::Tensor& whole) {
                       groups_.data().reduce_scatter(whole, placement_->counts(unit));
                     });
}

at::Tensor ModelWorker::unit_gradients(const spec::FlatUnit& unit, at::ScalarType dtype) {
  if (placement_->slices_gradients()) {
    return runtime_
        .region(tag(TagKind::kUnitGradients), step::gradient_slot(unit, spec_.ties_table()), dtype)
        .narrow(0, 0, unit.elements);
  }
  const auto* const storage = hosted_trained(unit);
  return storage == nullptr ? region(TagKind::kGradients, unit, dtype)
                            : host_tensor(*storage->gradients, unit.elements, dtype);
}

at::Tensor ModelWorker::state_part(std::size_t index, const spec::StatePart& part) {
  const bridge::StreamedStates* const streamed =
      runtime_.streamed_states(tag(spec::TagKind::kOptimizer));
  if (streamed == nullptr)
    return runtime_.region(tag(spec::TagKind::kOptimizer), part.name, at::kByte);
  return host_tensor(streamed->states(index), static_cast<std::int64_t>(part.bytes.count()),
                     at::kByte);
}

std::vector<at::Tensor> ModelWorker::regions(spec::TagKind kind,
                                             const std::vector<spec::FlatUnit>& units,
                                             at::ScalarType dtype) {
  std::vector<at::Tensor> out;
  out.reserve(units.size());
  for (const spec::FlatUnit& unit : units) {
    out.push_back(region(kind, unit, dtype));
  }
  return out;
}

at::Tensor ModelWorker::region(spec::TagKind kind, const spec::FlatUnit& unit,
                               at::ScalarType dtype) {
  return runtime_.region(tag(kind), unit.name, dtype).narrow(0, 0, unit.elements);
}

std::unique_ptr<bridge::Runtime::Scope> ModelWorker::hold(bool weights) {
  std::vector<spec::TagId> tags;
  if (weights) tags.push_back(tag(TagKind::kWeights));
  if (has_lora()) tags.push_back(tag(TagKind::kAdapter));
  if (spec_.trained && !parts_) tags.push_back(tag(TagKind::kOptimizer));
  return runtime_.hold(tags);
}

const arena::HostStorage& ModelWorker::storage_of(const step::UpdatePart& part,
                                                  step::StreamedKind kind) {
  if (kind == step::StreamedKind::kStates)
    return runtime_.streamed_states(tag(TagKind::kOptimizer))
        ->states(placement_->sliced() ? 0 : part.unit);
  const auto* const storage = hosted_trained(trained_layout()[part.unit]);
  return kind == step::StreamedKind::kWeights ? *storage->weights : *storage->gradients;
}

void ModelWorker::for_each_part(const std::function<void(const OptimizerUnit&)>& visit) {
  if (!parts_) {
    for (const OptimizerUnit& piece : pieces_) visit(piece);
    return;
  }
  bridge::StreamedStates& states = *runtime_.streamed_states(tag(TagKind::kOptimizer));
  std::vector<at::Tensor> slots;
  slots.reserve(states.slots().size());
  for (const bridge::SlotPart& slot : states.slots())
    slots.push_back(runtime_.region(tag(TagKind::kOptimizer), slot.name, at::kByte));
  const std::vector<step::UpdatePart>& list = parts_->list();
  const auto copies = [&](std::size_t i) {
    std::vector<bridge::StreamedStates::Copy> out;
    for (const step::PartTensor& t : parts_->layout(list[i]).tensors)
      out.push_back({&storage_of(list[i], t.kind), t.kind, t.storage_offset, t.slot_offset,
                     t.bytes(), t.fetched, t.stored});
    return out;
  };
  model::AtenOps ops(slots.at(0).device());
  states.for_each(list.size(), copies, [&](std::size_t i, std::size_t slot) {
    const auto in_slot = [&](const step::PartTensor& t) {
      return slots[slot]
          .narrow(0, static_cast<std::int64_t>(t.slot_offset.count()),
                  static_cast<std::int64_t>(t.bytes().count()))
          .view(model::to_aten(t.dtype));
    };
    visit(step::part_of(ops, pieces_[list[i].piece], list[i], parts_->layout(list[i]), in_slot));
  });
}

void ModelWorker::load() {
  const auto held = hold();
  const UnitFill fill = weight_source();
  for (const at::Tensor& flat : adapters_) at::Tensor(flat).zero_();
  if (!optimizer_ || has_lora()) {
    for (const at::Tensor& flat : weights_) at::Tensor(flat).zero_();
    fill(0, weights_);
  }
  if (has_lora()) start_adapters();
  if (optimizer_) {
    start_units(fill);
    optimizer_->restore_steps(0);
  }
  start_.reset();
  throw_if_error(held->close());
}

ModelWorker::UnitFill ModelWorker::weight_source() {
  const fs::path& folder = spec_.files.base;
  if (!spec::has_weights(folder)) {
    const bool scalar = spec_.head == spec::Head::kScalar;
    if (!spec_.trained || has_lora() || (scalar && !spec_.init_head)) {
      throw Error(ErrorCode::kNotFound,
                  format("{} has no weights (model.safetensors). The {} model cannot start from "
                         "random weights",
                         folder.string(), spec_.name()));
    }
    if (groups_.world().first())
      log::info(format("{} has no weights: the {} model starts from random weights, seed {}",
                       folder.string(), spec_.name(), spec_.seed));
    return of_part(
        [this](std::size_t first, const std::vector<at::Tensor>& flat) {
          model::initialize(spec_.whole, spec_.head, first, flat, spec_.seed);
        },
        cuts_, numbers_);
  }
  const auto reader = std::make_shared<model::ModelReader>(spec_.files, spec_.whole, spec_.head);
  report_unused(*reader);
  if (!reader->missing().empty()) check_missing_head();
  return of_part([reader](std::size_t first,
                          const std::vector<at::Tensor>& flat) { reader->read(first, flat); },
                 cuts_, numbers_);
}

ModelWorker::UnitFill ModelWorker::of_part(UnitFill whole,
                                           const std::optional<model::UnitCuts>& cuts,
                                           const std::vector<std::size_t>& numbers) const {
  if (!cuts) {
    if (!has_stages()) return whole;
    return [whole = std::move(whole), &numbers](std::size_t first,
                                                const std::vector<at::Tensor>& flat) {
      for (std::size_t i = 0; i < flat.size(); ++i) whole(numbers[first + i], {flat[i]});
    };
  }
  return [this, whole = std::move(whole), &cuts = *cuts, &numbers](
             std::size_t first, const std::vector<at::Tensor>& flat) {
    const bridge::HostScope host;
    for (std::size_t i = 0; i < flat.size(); ++i) {
      const std::size_t u = first + i;
      const at::Tensor unit =
          at::zeros({cuts.whole()[u].elements}, at::dtype(flat[i].scalar_type()));
      whole(numbers[u], {unit});
      cuts.take(u, shard().rank, unit, flat[i]);
    }
  };
}

at::Tensor ModelWorker::gather_unit(const model::UnitCuts& cuts, std::size_t unit,
                                    const at::Tensor& part) const {
  const bridge::HostScope host;
  const at::Tensor mine = part.cpu();
  const at::Tensor parts = at::empty({shard().ranks, mine.size(0)}, mine.options());
  groups_.tensor().all_gather(parts, mine);
  at::Tensor whole = at::zeros({cuts.whole()[unit].elements}, mine.options());
  for (std::int64_t rank = 0; rank < shard().ranks; ++rank)
    cuts.put(unit, rank, parts[rank], whole);
  return whole;
}

void ModelWorker::check_missing_head() const {
  if (!spec_.init_head) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has no tensor \"{}\", the scalar head of the {} model: it is a "
                       "language model. Train a reward model first (task = \"reward\"){}",
                       spec_.files.base.string(), kHead, spec_.name(),
                       spec_.id == spec::ModelId::kCritic
                           ? ", or set critic.model.init_head = true to start from a head of zeros"
                           : ""));
  }
  if (groups_.world().first())
    log::info(format("{} has no scalar head: the {} model's starts at zero",
                     spec_.files.base.string(), spec_.name()));
}

void ModelWorker::report_unused(const model::ModelReader& reader) const {
  constexpr std::size_t kShown = 5;
  const std::vector<std::string>& unused = reader.unused();
  if (unused.empty() || !groups_.world().first()) return;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, unused.size()); ++i)
    names += (i == 0 ? "" : ", ") + unused[i];
  if (unused.size() > kShown) names += ", ...";
  log::warn(format("{}: {} tensors are not used by the {} model: {}", spec_.files.base.string(),
                   unused.size(), spec_.name(), names));
}

void ModelWorker::start_adapters() {
  if (!spec_.adapter.empty()) {
    start_ =
        std::make_unique<model::AdapterReader>(spec_.adapter, spec_.whole, spec_.head, spec_.lora);
    return adapter_source(*start_)(0, adapters_);
  }
  of_part(
      [this](std::size_t first, const std::vector<at::Tensor>& flat) {
        model::initialize_adapters(spec_.whole, spec_.head, spec_.lora, flat, spec_.seed, first);
      },
      adapter_cuts_, adapter_numbers_)(0, adapters_);
  const bridge::NoAutograd no_autograd;
  for (const model::NamedParameter& adapter : model_->adapters()) {
    if (!adapter.name.ends_with(kHead)) continue;
    for (const model::NamedParameter& own : model_->parameters()) {
      if (own.name == kHead) at::Tensor(adapter.weight).copy_(own.weight);
    }
  }
}

ModelWorker::UnitFill ModelWorker::adapter_source(const model::AdapterReader& reader) const {
  return of_part([&reader](std::size_t first,
                           const std::vector<at::Tensor>& flat) { reader.read(first, flat); },
                 adapter_cuts_, adapter_numbers_);
}

fs::path ModelWorker::base_folder() const {
  const bool one = spec_.files.adapter.empty() && spec::has_weights(spec_.files.base);
  return one ? fs::weakly_canonical(spec_.files.base) : fs::path();
}

void ModelWorker::expect_agreement(bool weights) const {
  if (groups_.world().alone()) return;
  // The sum of the bit patterns, which one differing bit changes.
  const auto sum_of = [](const at::Tensor& flat) {
    const at::ScalarType bits = flat.element_size() == 2 ? at::kShort : at::kInt;
    return flat.view(bits).sum(at::kLong).item<std::int64_t>();
  };
  std::int64_t all = 0, copied = 0;  // copied: what every rank has of a divided model
  const auto add = [&](const std::vector<at::Tensor>& tensors,
                       const std::vector<spec::FlatUnit>& units) {
    for (std::size_t u = 0; u < tensors.size(); ++u) {
      all += sum_of(tensors[u]);
      for (const spec::SpreadRange& range : spec::spread_ranges(units[u]))
        if (range.spread.parts == 1)
          copied += sum_of(tensors[u].narrow(0, range.first, range.count));
    }
  };
  if (weights) add(weights_, layout_);
  add(adapters_, adapter_layout_);
  const std::string what = format("The sum over the bits of the {} model's weights", spec_.name());
  groups_.data().expect_same(all, what);
  groups_.tensor().expect_same(copied, what + " that ranks do not divide");
  if (weights && has_stages()) expect_equal_tables();
}

void ModelWorker::save(const fs::path& folder, const model::SaveOptions& options) {
  const auto held = hold(saves_weights());
  const bridge::HostScope host;
  expect_agreement(saves_weights());
  // Parts come together on the ranks that divide the first copy of the model.
  if (groups_.data().first()) write(folder, options);
  if (optimizer_) write_states(folder);
  throw_if_error(held->close());
}

void ModelWorker::write(const fs::path& folder, model::SaveOptions options) {
  const bool first = groups_.world().first();
  std::error_code error;
  if (first) fs::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), error.message()));
  }
  options.origin = spec_.files.base;
  options.sync = model::Sync::kByCaller;
  if (saves_weights()) {
    write_weights(folder, options);
  } else if (first) {
    model::copy_companions(folder, options);
  }
  if (has_lora()) write_adapters(folder, options.sync);
}

void ModelWorker::write_weights(const fs::path& folder, const model::SaveOptions& options) {
  if (!cuts_ && !has_stages())
    return model::save_model(folder, spec_.shape, spec_.head, weights_, options);
  const std::vector<spec::FlatUnit> units = spec::flat_layout(spec_.whole, spec_.head);
  const auto whole = [&](std::size_t u) {
    return has_stages() ? unit_of_stages(units, numbers_, cuts_, weights_, u)
                        : gather_unit(*cuts_, u, weights_[u]);
  };
  if (groups_.world().first()) {
    model::SaveOptions typed = options;
    typed.dtype = weights_.front().scalar_type();
    return model::save_model(folder, spec_.whole, spec_.head, whole, typed);
  }
  for (std::size_t u = 0; u < units.size(); ++u) (void)whole(u);
}

void ModelWorker::write_adapters(const fs::path& folder, model::Sync sync) {
  std::vector<at::Tensor> whole;
  if (has_stages()) {
    const auto units = spec::lora_layout(spec_.whole, spec_.head, spec_.lora);
    for (std::size_t u = 0; u < units.size(); ++u)
      whole.push_back(unit_of_stages(units, adapter_numbers_, adapter_cuts_, adapters_, u));
  } else if (adapter_cuts_) {
    for (std::size_t u = 0; u < adapters_.size(); ++u)
      whole.push_back(gather_unit(*adapter_cuts_, u, adapters_[u]));
  }
  if (!groups_.world().first()) return;
  // By its name PEFT finds the base.
  model::save_adapter(folder, spec_.whole, spec_.head, spec_.lora,
                      whole.empty() ? adapters_ : whole, base_folder().string(), sync);
}

void ModelWorker::restore(const fs::path& folder) {
  const auto held = hold();
  const bridge::HostScope host;
  for (const auto* tensors : {&weights_, &adapters_}) {
    for (const at::Tensor& flat : *tensors) at::Tensor(flat).zero_();
  }
  if (has_lora() && !spec::has_weights(folder)) {
    weight_source()(0, weights_);
  } else {
    const model::ModelReader reader(spec::ModelFiles{folder, {}}, spec_.whole, spec_.head);
    if (!reader.missing().empty()) {
      throw Error(ErrorCode::kCorrupt,
                  format("{} has no tensor \"{}\"", folder.string(), reader.missing().front()));
    }
    of_part([&reader](std::size_t first,
                      const std::vector<at::Tensor>& flat) { reader.read(first, flat); },
            cuts_, numbers_)(0, weights_);
  }
  if (has_lora()) {
    const model::AdapterReader reader(folder, spec_.whole, spec_.head, spec_.lora);
    adapter_source(reader)(0, adapters_);
  }
  if (optimizer_) restore_states(folder);
  throw_if_error(held->close());
}

}  // namespace neap::train

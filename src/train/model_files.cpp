// The folders of a model: where weights and adapters come from, and checkpoints of them.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "parallel/run_collectively.h"
#include "train/model_worker.h"
#include "weights/checkpoint.h"
#include "weights/fingerprint.h"
#include "weights/initialize.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kHead = "score.weight";

}  // namespace

void ModelWorker::load() {
  const auto held = hold();
  const UnitFill fill = weight_source();
  for (const at::Tensor& flat : adapters_) at::Tensor(flat).zero_();
  if (reads_blocks()) read_blocks_from(spec_.files.base);
  if (!optimizer_ || has_lora()) fill_base(fill);
  if (has_lora()) {
    weights::check_base({spec_.files.base, spec_.adapter});
    start_adapters(fill);
    note_base();
  }
  if (optimizer_) {
    start_units(fill);
    optimizer_->restore_steps(0);
  }
  start_.reset();
  throw_if_error(held->close());
}

void ModelWorker::fill_base(const UnitFill& fill) {
  for (const at::Tensor& flat : weights_)
    if (flat.defined()) at::Tensor(flat).zero_();
  of_base(fill)(0, weights_);
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
          weights::initialize(spec_.whole, spec_.head, first, flat, spec_.seed);
        },
        cuts_, numbers_);
  }
  const auto reader = std::make_shared<weights::ModelReader>(spec_.files, spec_.whole, spec_.head);
  report_unused(*reader);
  if (!reader->missing().empty()) check_missing_head();
  return of_part([reader](std::size_t first,
                          const std::vector<at::Tensor>& flat) { reader->read(first, flat); },
                 cuts_, numbers_);
}

ModelWorker::UnitFill ModelWorker::of_part(UnitFill whole,
                                           const std::optional<weights::UnitCuts>& cuts,
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

ModelWorker::UnitFill ModelWorker::of_base(UnitFill whole) const {
  if (!sliced_) return whole;
  return [this, whole = std::move(whole)](std::size_t first, const std::vector<at::Tensor>& flat) {
    const bridge::HostScope host;
    for (std::size_t i = 0; i < flat.size(); ++i) {
      const std::size_t u = first + i;
      const spec::UnitSlices::Range mine = sliced_->slices().range(u, groups_.shards().rank());
      if (mine.count == 0) continue;
      const at::Tensor unit = at::zeros({layout_[u].elements}, at::dtype(flat[i].scalar_type()));
      whole(u, {unit});
      flat[i].copy_(unit.narrow(0, mine.first, mine.count));
    }
  };
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

void ModelWorker::report_unused(const weights::ModelReader& reader) const {
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

void ModelWorker::start_adapters(const UnitFill& base) {
  if (!spec_.adapter.empty()) {
    start_ = std::make_unique<weights::AdapterReader>(spec_.adapter, spec_.whole, spec_.head,
                                                      spec_.lora);
    return adapter_source(*start_)(0, adapters_);
  }
  of_part(
      [this](std::size_t first, const std::vector<at::Tensor>& flat) {
        weights::initialize_adapters(spec_.whole, spec_.head, spec_.lora, flat, spec_.seed, first);
      },
      adapter_cuts_, adapter_numbers_)(0, adapters_);
  for (const ops::NamedParameter& adapter : model_->adapters())
    if (adapter.name.ends_with(kHead)) start_scalar_head(adapter.weight, base);
}

void ModelWorker::start_scalar_head(const at::Tensor& adapter, const UnitFill& base) {
  const bridge::NoAutograd no_autograd;
  const bridge::HostScope host;
  for (const ops::NamedParameter& own : model_->parameters()) {
    if (own.name != kHead) continue;
    if (!sliced_) return void(at::Tensor(adapter).copy_(own.weight));
    const spec::FlatUnit& unit = layout_[own.unit];
    const at::Tensor whole = at::zeros({unit.elements}, at::dtype(adapter.scalar_type()));
    base(own.unit, {whole});
    at::Tensor(adapter).copy_(ops::parameter_view(whole, *unit.find(spec::Module::kScore)));
  }
}

ModelWorker::UnitFill ModelWorker::adapter_source(const weights::AdapterReader& reader) const {
  return of_part([&reader](std::size_t first,
                           const std::vector<at::Tensor>& flat) { reader.read(first, flat); },
                 adapter_cuts_, adapter_numbers_);
}

fs::path ModelWorker::base_folder() const {
  const bool one = spec_.files.adapter.empty() && spec::has_weights(spec_.files.base);
  return one ? fs::weakly_canonical(spec_.files.base) : fs::path();
}

std::int64_t ModelWorker::sum_of_bits(const at::Tensor& flat) {
  const at::ScalarType bits = flat.element_size() == 2 ? at::kShort : at::kInt;
  return flat.view(bits).sum(at::kLong).item<std::int64_t>();
}

void ModelWorker::expect_agreement(bool weights) const {
  if (groups_.world().alone()) return;
  // Copied: elements that every rank of a tensor-parallel group has.
  std::int64_t all = 0, slices = 0, copied = 0;
  // `tensor` has a unit's elements from `first` on.
  const auto add_copied = [&](const spec::FlatUnit& unit, const at::Tensor& tensor,
                              std::int64_t first) {
    for (const spec::SpreadRange& range : spec::spread_ranges(unit)) {
      const std::int64_t from = std::max(first, range.first);
      const std::int64_t end = std::min(first + tensor.size(0), range.first + range.count);
      if (range.spread.parts == 1 && from < end)
        copied += sum_of_bits(tensor.narrow(0, from - first, end - from));
    }
  };
  const auto add = [&](const std::vector<at::Tensor>& tensors,
                       const std::vector<spec::FlatUnit>& units) {
    for (std::size_t u = 0; u < tensors.size(); ++u) {
      all += sum_of_bits(tensors[u]);
      add_copied(units[u], tensors[u], 0);
    }
  };
  if (weights && !sliced_) add(weights_, layout_);
  // Replicas have the same ZeRO shard and other data-parallel ranks do not. Every rank of the
  // tensor-parallel group has the copied elements in its part.
  for (std::size_t u = 0; weights && sliced_ && u < layout_.size(); ++u) {
    slices += sum_of_bits(weights_[u]);
    add_copied(layout_[u], weights_[u], sliced_->slices().range(u, groups_.shards().rank()).first);
  }
  add(adapters_, adapter_layout_);
  const std::string what = format("The sum over the bits of the {} model's weights", spec_.name());
  groups_.copies().expect_same(all, what);
  groups_.replicas().expect_same(slices, what + " of one slice");
  groups_.tensor().expect_same(copied, what + " that ranks do not divide");
  if (weights && has_stages()) expect_equal_tables();
}

void ModelWorker::save(const fs::path& folder, const weights::SaveOptions& options,
                       SavedFiles& files) {
  const auto held = hold(saves_weights());
  const bridge::HostScope host;
  expect_agreement(saves_weights());
  write(folder, options, files);
  if (optimizer_) write_states(folder, files);
  throw_if_error(held->close());
}

void ModelWorker::by_first(const std::function<void()>& work) const {
  parallel::run_collectively(groups_.world(), [&] {
    if (groups_.world().first()) work();
  });
}

void ModelWorker::write(const fs::path& folder, weights::SaveOptions options, SavedFiles& saved) {
  by_first([&] {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), error.message()));
  });
  options.origin = spec_.files.base;
  options.sync = weights::Sync::kByCaller;
  if (saves_weights()) {
    write_weights(folder, options, saved);
  } else {
    by_first([&] { weights::copy_companions(folder, options); });
  }
  if (has_lora()) write_adapters(folder, options.sync, saved);
}

void ModelWorker::write_weights(const fs::path& folder, const weights::SaveOptions& options,
                                SavedFiles& saved) {
  const std::vector<spec::FlatUnit> units = spec::flat_layout(spec_.whole, spec_.head);
  const at::ScalarType type = weights_.front().scalar_type();
  const weights::TensorFiles files =
      weights::model_files(folder, weights::tensors_of(units, type), options.max_shard);
  write_units(files, units, options.sync, {layout_, numbers_, cuts_, weights_, sliced_.get()},
              saved, [files] { weights::finish_model_files(files); });
  by_first([&] { weights::save_model_rest(folder, spec_.whole, spec_.head, type, options); });
}

// Recorded while loading: the folder may be replaced before adapters are saved.
void ModelWorker::note_base() {
  const fs::path base = base_folder();
  if (!base.empty() && spec::has_weights(base))
    base_fingerprint_ = weights::fingerprint({base, {}});
}

void ModelWorker::write_adapters(const fs::path& folder, weights::Sync sync, SavedFiles& saved) {
  const auto units = spec::lora_layout(spec_.whole, spec_.head, spec_.lora);
  OwnUnits own{adapter_layout_, adapter_numbers_, adapter_cuts_, adapters_, nullptr};
  if (!base_fingerprint_.empty() && !saves_weights())
    own.metadata[weights::kBaseKey] = base_fingerprint_;
  write_units(weights::adapter_file(folder, units, adapters_.front().scalar_type()), units, sync,
              own, saved);
  // PEFT finds the base by its path.
  by_first([&] {
    weights::save_adapter_config(folder, spec_.whole, spec_.head, spec_.lora,
                                 base_folder().string());
  });
}

void ModelWorker::write_units(const weights::TensorFiles& files,
                              const std::vector<spec::FlatUnit>& whole, weights::Sync sync,
                              const OwnUnits& own, SavedFiles& saved,
                              std::function<void()> finished) {
  saved.add(
      CollectiveFiles(groups_.world(), files, own.metadata, sync),
      [&](const PartVisit& visit) { visit_own_units(whole, own, visit); }, std::move(finished));
}

void ModelWorker::visit_own_units(const std::vector<spec::FlatUnit>& whole, const OwnUnits& own,
                                  const PartVisit& visit) const {
  std::vector<std::size_t> first = {0};  // of a unit's tensors
  for (const spec::FlatUnit& unit : whole) first.push_back(first.back() + unit.parameters.size());
  const parallel::Communicator& copies = groups_.copies();
  const auto rank = static_cast<std::size_t>(copies.rank());
  std::vector<FilePart> parts;
  for (std::size_t u = 0; u < own.units.size(); ++u) {
    const spec::FlatUnit& unit = own.units[u];
    if (!writes_unit(whole[own.numbers[u]])) continue;
    const spec::UnitSlices::Range mine =
        own.slices != nullptr ? own.slices->slices().range(u, groups_.shards().rank())
                              : spec::UnitSlices::Range{0, unit.elements};
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::size_t tensor = first[own.numbers[u]] + i;
      // Data-parallel ranks have equal copies, so they divide the tensors among each other.
      // Replicas of ZeRO shards do the same.
      const bool mine_to_write = own.slices != nullptr
                                     ? writes_slice(tensor)
                                     : tensor % static_cast<std::size_t>(copies.size()) == rank;
      if (!mine_to_write) continue;
      const spec::Parameter& p = unit.parameters[i];
      const std::vector<weights::PartRun> runs =
          own.cuts ? own.cuts->runs(u, i, shard().rank)
                   : std::vector<weights::PartRun>{{p.offset, 0, p.elements()}};
      parts.push_back({tensor, own.values[u], weights::within(runs, mine.first, mine.count)});
    }
    // If columns are sharded, each row is a run.
    if (own.cuts) visit(std::exchange(parts, {}));
  }
  visit(parts);
}

void ModelWorker::restore(const fs::path& folder) {
  const auto held = hold();
  const bridge::HostScope host;
  for (const at::Tensor& flat : adapters_) at::Tensor(flat).zero_();
  const bool has_base = !has_lora() || spec::has_weights(folder);
  if (reads_blocks()) read_blocks_from(has_base ? folder : spec_.files.base);
  if (!has_base) {
    fill_base(weight_source());
  } else {
    const weights::ModelReader reader(spec::ModelFiles{folder, {}}, spec_.whole, spec_.head);
    if (!reader.missing().empty()) {
      throw Error(ErrorCode::kCorrupt,
                  format("{} has no tensor \"{}\"", folder.string(), reader.missing().front()));
    }
    fill_base(of_part([&reader](std::size_t first,
                                const std::vector<at::Tensor>& flat) { reader.read(first, flat); },
                      cuts_, numbers_));
  }
  if (has_lora()) {
    if (!has_base) weights::check_base({spec_.files.base, folder});
    const weights::AdapterReader reader(folder, spec_.whole, spec_.head, spec_.lora);
    adapter_source(reader)(0, adapters_);
    note_base();
  }
  if (optimizer_) restore_states(folder);
  throw_if_error(held->close());
}

}  // namespace neap::train

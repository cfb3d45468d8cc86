#include "train/model_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"
#include "parallel/run_collectively.h"
#include "weights/initialize.h"
#include "weights/tensor_io.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kHead = "score.weight";

// Fills units of the whole model from files.
template <class Reader>
UnitFill reads(std::shared_ptr<Reader> reader) {
  return [reader = std::move(reader)](std::size_t first, const std::vector<at::Tensor>& flat) {
    reader->read(first, flat);
  };
}

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kKindKey = "optimizer";
constexpr const char* kStepsKey = "steps";

// `states` must contain the name.
std::size_t number_of(const std::vector<spec::WholeState>& states, std::string_view name) {
  return static_cast<std::size_t>(
      std::find_if(states.begin(), states.end(),
                   [&](const spec::WholeState& each) { return each.name == name; }) -
      states.begin());
}

// The number of optimizer steps that a file's states have seen.
std::int64_t steps_of(const weights::SafetensorsFile& states) {
  const auto steps = states.metadata().find(kStepsKey);
  std::int64_t count = -1;
  if (steps != states.metadata().end()) {
    const std::string& text = steps->second;
    std::from_chars(text.data(), text.data() + text.size(), count);
  }
  if (count < 0) {
    throw Error(ErrorCode::kCorrupt, format("{} does not say how many steps the optimizer has made",
                                            states.path().string()));
  }
  return count;
}

// The states of the whole model, as the file has them.
std::vector<spec::WholeState> whole_states(const ModelOptimizer& optimizer) {
  return spec::StatePlacement(optimizer.placement().optimizer(), optimizer.part().whole()).states();
}

void add_padding(const ModelPart& part, std::size_t number, const spec::WholeState& state,
                 std::vector<FilePart>& parts) {
  const std::vector<weights::PartRun> padding = part.padding(state);
  if (padding.empty()) return;
  const std::int64_t elements = padding.back().part + padding.back().count;
  parts.push_back(
      {number, at::zeros({elements}, at::dtype(bridge::to_aten(state.dtype))), padding});
}

// Visits the states in the file that this rank writes.
void visit_states(const parallel::Groups& groups, const ModelOptimizer& optimizer,
                  const std::vector<spec::WholeState>& all, const PartVisit& visit) {
  const spec::StatePlacement& placement = optimizer.placement();
  const ModelPart& part = optimizer.part();
  const std::int64_t rank = groups.shards().rank();
  const auto replica = static_cast<std::size_t>(groups.replicas().rank());
  const auto replicas = static_cast<std::size_t>(groups.replicas().size());
  std::vector<FilePart> parts;
  for (const spec::WholeState& state : placement.states()) {
    const std::size_t number = number_of(all, state.name);
    if (!part.writes(all[number].unit) || number % replicas != replica) continue;
    for (const spec::OwnedRange& owner : placement.owners(state)) {
      if (owner.rank != rank) continue;
      parts.push_back({number, optimizer.own_part(state),
                       weights::within(part.runs(state), owner.first, owner.count)});
    }
    if (!part.cut()) continue;
    if (rank == 0 && groups.tensor().first()) add_padding(part, number, state, parts);
    // If columns are sharded, each row is a run.
    visit(std::exchange(parts, {}));
  }
  visit(parts);
}

// For ranks that cut units.
void restore_parts(std::int64_t rank, const ModelOptimizer& optimizer,
                   const weights::SafetensorsFile& file) {
  const spec::StatePlacement& placement = optimizer.placement();
  const std::vector<spec::WholeState> all = whole_states(optimizer);
  const std::vector<spec::WholeState> parts = placement.states();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor mine = optimizer.own_part(parts[i]);
    if (!mine.defined()) continue;
    const at::ScalarType dtype = bridge::to_aten(parts[i].dtype);
    const spec::WholeState& same = all[number_of(all, parts[i].name)];
    const at::Tensor whole = at::empty({same.elements}, at::dtype(dtype));
    weights::load_tensors(file, {{same.name, whole}});
    const at::Tensor part = at::zeros({parts[i].elements}, at::dtype(dtype));
    optimizer.part().take(parts[i], whole, part);
    for (const spec::OwnedRange& owner : placement.owners(parts[i])) {
      const bool own = !placement.sliced() || owner.rank == rank;
      if (own) mine.copy_(part.narrow(0, owner.first, owner.count));
    }
  }
}

// Allows a missing scalar head, which starts at zero, only if the job says so. Otherwise fails.
void check_missing_head(const RankModel& model) {
  if (!model.spec.init_head) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has no tensor \"{}\", the scalar head of the {} model: it is a "
                       "language model. Train a reward model first (task = \"reward\"){}",
                       model.spec.files.base.string(), kHead, model.spec.name(),
                       model.spec.id == spec::ModelId::kCritic
                           ? ", or set critic.model.init_head = true to start from a head of zeros"
                           : ""));
  }
  if (model.groups.world().first())
    log::info(format("{} has no scalar head: the {} model's starts at zero",
                     model.spec.files.base.string(), model.spec.name()));
}

// Warns of tensors in the folder that the model does not use.
void report_unused(const RankModel& model, const weights::ModelReader& reader) {
  constexpr std::size_t kShown = 5;
  const std::vector<std::string>& unused = reader.unused();
  if (unused.empty() || !model.groups.world().first()) return;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, unused.size()); ++i)
    names += (i == 0 ? "" : ", ") + unused[i];
  if (unused.size() > kShown) names += ", ...";
  log::warn(format("{}: {} tensors are not used by the {} model: {}",
                   model.spec.files.base.string(), unused.size(), model.spec.name(), names));
}

}  // namespace

void ModelFiles::load() {
  const auto held = hold();
  const UnitFill base = weight_source();
  base_.read_from(spec_.files.base);
  if (optimizer_ == nullptr || adapters_ != nullptr) base_.fill(base);
  UnitFill start = base;
  if (adapters_ != nullptr) {
    spec_.folders.check_base({spec_.files.base, spec_.adapter});
    start = start_adapters(base);
    note_base();
  }
  if (optimizer_ != nullptr) optimizer_->start(start);
  throw_if_error(held->close());
}

std::unique_ptr<bridge::Runtime::Scope> ModelFiles::hold(bool weights) {
  std::vector<spec::TagId> tags;
  if (const auto tag = base_.tag(); weights && tag) tags.push_back(*tag);
  if (adapters_ != nullptr) tags.push_back(*adapters_->tag());
  if (optimizer_ != nullptr && !optimizer_->offloaded())
    tags.push_back(rank_.tag(spec::TagKind::kOptimizer));
  return rank_.runtime.hold(tags);
}

UnitFill ModelFiles::weight_source() {
  const fs::path& folder = spec_.files.base;
  if (!spec::has_weights(folder)) {
    const bool scalar = spec_.head == spec::Head::kScalar;
    if (!spec_.trained || adapters_ != nullptr || (scalar && !spec_.init_head)) {
      throw Error(ErrorCode::kNotFound,
                  format("{} has no weights (model.safetensors). The {} model cannot start from "
                         "random weights",
                         folder.string(), spec_.name()));
    }
    if (groups_.world().first())
      log::info(format("{} has no weights: the {} model starts from random weights, seed {}",
                       folder.string(), spec_.name(), spec_.seed));
    return base_.part().of_part([this](std::size_t first, const std::vector<at::Tensor>& flat) {
      weights::initialize(spec_.whole, spec_.head, first, flat, spec_.seed);
    });
  }
  const auto reader =
      std::make_shared<weights::ModelReader>(spec_.files, spec_.whole, spec_.head, spec_.folders);
  report_unused(rank_, *reader);
  if (!reader->missing().empty()) check_missing_head(rank_);
  return base_.part().of_part(reads(reader));
}

UnitFill ModelFiles::adapter_source(const fs::path& folder) const {
  return adapters_->part().of_part(reads(std::make_shared<weights::AdapterReader>(
      folder, spec_.whole, spec_.head, spec_.lora, spec_.folders)));
}

UnitFill ModelFiles::start_adapters(const UnitFill& base) {
  if (!spec_.adapter.empty()) {
    UnitFill source = adapter_source(spec_.adapter);
    adapters_->fill(source);
    return source;
  }
  adapters_->fill(
      adapters_->part().of_part([this](std::size_t first, const std::vector<at::Tensor>& flat) {
        weights::initialize_adapters(spec_.whole, spec_.head, spec_.lora, flat, spec_.seed, first);
      }));
  const std::vector<spec::FlatUnit>& units = adapters_->part().layout();  // a head is the last
  const spec::Parameter* const score =
      units.empty() ? nullptr : units.back().find(spec::Module::kScore);
  if (score == nullptr) return {};
  const bridge::NoAutograd no_autograd;
  const bridge::HostScope host;
  const at::Tensor& head = adapters_->values().back();
  const spec::FlatUnit& unit = base_.part().layout().back();
  const spec::Parameter* const start = unit.find(spec::Module::kScore);
  if (start == nullptr)
    throw Error(ErrorCode::kInternal,
                format("the last unit of the {} model has no scalar head", spec_.name()));
  const at::Tensor whole = at::zeros({unit.elements}, at::dtype(head.scalar_type()));
  base(base_.part().layout().size() - 1, {whole});
  ops::parameter_view(head, *score).copy_(ops::parameter_view(whole, *start));
  return {};
}

void ModelFiles::save(const fs::path& folder, const weights::SaveOptions& options,
                      SavedFiles& files) {
  const auto held = hold(saves_weights());
  const bridge::HostScope host;
  if (saves_weights()) base_.check_equal();
  if (adapters_ != nullptr) adapters_->check_equal();
  by_first([&] {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), error.message()));
  });
  weights::SaveOptions own = options;
  own.origin = spec_.files.base;
  own.sync = weights::Sync::kByCaller;
  if (saves_weights()) {
    write_weights(folder, own, files);
  } else {
    by_first([&] { weights::copy_companions(folder, own); });
  }
  if (adapters_ != nullptr) write_adapters(folder, own.sync, files);
  if (optimizer_ != nullptr) write_states(folder, files);
  throw_if_error(held->close());
}

void ModelFiles::by_first(const std::function<void()>& work) const {
  parallel::run_collectively(groups_.world(), [&] {
    if (groups_.world().first()) work();
  });
}

void ModelFiles::write_weights(const fs::path& folder, const weights::SaveOptions& options,
                               SavedFiles& saved) {
  const at::ScalarType type = rank_.runtime.compute_dtype();
  const weights::TensorFiles files = weights::model_files(
      folder, weights::tensors_of(base_.part().whole(), type), options.max_shard);
  saved.add(
      CollectiveFiles(groups_.world(), files, {{"format", "pt"}}, options.sync),
      [this](const PartVisit& visit) { base_.visit_parts(visit); },
      [files] { weights::finish_model_files(files); });
  by_first([&] { weights::save_model_rest(folder, spec_.whole, spec_.head, type, options); });
}

void ModelFiles::note_base() {
  if (!spec_.files.adapter.empty() || !spec::has_weights(spec_.files.base)) return;
  base_folder_ = fs::weakly_canonical(spec_.files.base);
  base_fingerprint_ = spec_.folders.fingerprint({spec_.files.base, {}});
}

void ModelFiles::write_adapters(const fs::path& folder, weights::Sync sync, SavedFiles& saved) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!base_fingerprint_.empty() && !saves_weights())
    metadata[weights::kBaseKey] = base_fingerprint_;
  const weights::TensorFiles file =
      weights::adapter_file(folder, adapters_->part().whole(), rank_.runtime.compute_dtype());
  saved.add(CollectiveFiles(groups_.world(), file, metadata, sync),
            [this](const PartVisit& visit) { adapters_->visit_parts(visit); });
  // PEFT finds the base by its path.
  by_first([&] {
    weights::save_adapter_config(folder, spec_.whole, spec_.head, spec_.lora,
                                 base_folder_.string());
  });
}

void ModelFiles::restore(const fs::path& folder) {
  const auto held = hold();
  const bridge::HostScope host;
  const bool has_base = adapters_ == nullptr || spec::has_weights(folder);
  base_.read_from(has_base ? folder : spec_.files.base);
  if (!has_base) {
    base_.fill(weight_source());
  } else {
    const auto reader = std::make_shared<weights::ModelReader>(
        spec::ModelFiles{folder, {}}, spec_.whole, spec_.head, spec_.folders);
    if (!reader->missing().empty()) {
      throw Error(ErrorCode::kCorrupt,
                  format("{} has no tensor \"{}\"", folder.string(), reader->missing().front()));
    }
    base_.fill(base_.part().of_part(reads(reader)));
  }
  if (adapters_ != nullptr) {
    if (!has_base) spec_.folders.check_base({spec_.files.base, folder});
    adapters_->fill(adapter_source(folder));
    note_base();
  }
  if (optimizer_ != nullptr) restore_states(folder);
  throw_if_error(held->close());
}

void ModelFiles::write_states(const fs::path& folder, SavedFiles& saved) const {
  const ModelOptimizer& optimizer = *optimizer_;
  const std::vector<spec::WholeState> all = whole_states(optimizer);
  std::vector<weights::TensorInfo> infos;
  infos.reserve(all.size());
  for (const spec::WholeState& state : all)
    infos.push_back(
        {state.name, weights::dtype_name(bridge::to_aten(state.dtype)), {state.elements}});
  saved.add(
      CollectiveFiles(groups_.world(), weights::one_file(folder / kOptimizerFile, infos),
                      {{kKindKey, std::string(to_string(optimizer.placement().optimizer().kind))},
                       {kStepsKey, std::to_string(optimizer.optimizer().steps())}},
                      weights::Sync::kByCaller),
      [&](const PartVisit& visit) { visit_states(groups_, optimizer, all, visit); });
}

void ModelFiles::restore_states(const fs::path& folder) const {
  ModelOptimizer& optimizer = *optimizer_;
  const spec::StatePlacement& placement = optimizer.placement();
  const std::int64_t rank = groups_.shards().rank();
  const std::string wanted(to_string(placement.optimizer().kind));
  const weights::SafetensorsFile file = spec_.folders.file(folder / kOptimizerFile);
  const auto kind = file.metadata().find(kKindKey);
  if (kind == file.metadata().end() || kind->second != wanted) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("{} has the state of the optimizer \"{}\"; the configuration has \"{}\"",
               file.path().string(), kind == file.metadata().end() ? "" : kind->second, wanted));
  }
  optimizer.optimizer().restore_steps(steps_of(file));
  if (optimizer.part().cut()) return restore_parts(rank, optimizer, file);
  weights::NamedTensors whole;
  std::vector<weights::NamedSlice> slices;
  for (const spec::WholeState& state : placement.states()) {
    const at::Tensor mine = optimizer.own_part(state);
    if (!mine.defined()) continue;
    if (mine.numel() == state.elements) {
      whole.emplace_back(state.name, mine);
      continue;
    }
    for (const spec::OwnedRange& owner : placement.owners(state))
      if (owner.rank == rank) slices.push_back({state.name, state.elements, owner.first, mine});
  }
  weights::load_tensors(file, whole);
  weights::load_slices(file, slices);
}

}  // namespace neap::train

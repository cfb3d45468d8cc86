// Optimizer states of a model: which are on this rank, their initial values, and their file in a
// checkpoint.
#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/torch_dtypes.h"
#include "train/model_worker.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

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

}  // namespace

void ModelWorker::make_pieces(const std::vector<OptimizerUnit>& units) {
  const std::vector<spec::StatePart> parts = placement_->parts();
  for (std::size_t p = 0; p < parts.size(); ++p) states_.push_back(state_part(p, parts[p]));
  at::Tensor gradients;
  if (placement_->slices_gradients() && !spec_.gradients_on_host)
    gradients = runtime_.region(tag(spec::TagKind::kGradients), spec::kSlicePart,
                                bridge::to_aten(placement_->optimizer().gradients));
  for (const spec::Piece& piece : placement_->pieces(groups_.shards().rank())) {
    spec::UnitState layout = placement_->state(piece);
    const at::Tensor states =
        states_[piece.part].narrow(0, static_cast<std::int64_t>(piece.offset.count()),
                                   static_cast<std::int64_t>(layout.bytes().count()));
    ops::AtenOps ops(runtime_.device());
    pieces_.push_back(step::make_piece(
        ops, units[piece.unit], piece, std::move(layout),
        [&](const spec::StateTensor& tensor) { return state_view(states, tensor); }));
    if (trains_slices()) pieces_.back().weights = weights_[piece.unit];
    pieces_.back().on_host = pieces_.back().on_host || spec_.gradients_on_host;
    if (gradients.defined())
      pieces_.back().gradients = gradients.narrow(0, piece.slice_first, piece.count);
  }
}

at::Tensor ModelWorker::own_part(const spec::WholeState& state) const {
  const auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const OptimizerUnit& each) {
    return each.unit.name == placement_->units()[state.unit].name;
  });
  return piece == pieces_.end() ? at::Tensor() : piece->state[state.tensor];
}

void ModelWorker::start_units(const UnitFill& fill) {
  for (const at::Tensor& state : states_) at::Tensor(state).zero_();
  if (has_lora() && !start_) {  // a new adapter: master weights start from it
    for (const OptimizerUnit& piece : pieces_) piece.target().copy_(piece.weights);
    return;
  }
  const UnitFill start = start_ ? adapter_source(*start_) : fill;
  if (placement_->sliced() && optimizer_->spec().has_master()) return start_sliced_masters(start);
  if (trains_slices()) return of_base(start)(0, weights_);
  // Master weights are loaded from the file in full precision, and the weights are rounded from
  // them. A target that is the weights themselves is not copied.
  std::vector<at::Tensor> targets;
  for (const OptimizerUnit& unit : optimizer_->units()) targets.push_back(unit.target());
  if (!start_)
    for (at::Tensor& target : targets) target.zero_();
  start(0, targets);
  for (std::size_t i = 0; i < targets.size(); ++i) optimizer_->units()[i].weights.copy_(targets[i]);
}

// Goes through host memory one unit at a time, in the type of the master weights.
void ModelWorker::start_sliced_masters(const UnitFill& fill) {
  const bridge::HostScope host;
  const at::ScalarType master = bridge::to_aten(optimizer_->spec().master);
  auto piece = pieces_.begin();
  for (std::size_t u = 0; u < optimizer_->units().size(); ++u) {
    const OptimizerUnit& unit = optimizer_->units()[u];
    const at::Tensor whole = at::zeros({unit.unit.elements}, at::dtype(master));
    fill(u, {whole});
    if (trains_slices()) {
      const at::Tensor& own = weights_[u];
      own.copy_(whole.narrow(0, placement_->slices().range(u, groups_.shards().rank()).first,
                             own.numel()));
    } else {
      unit.weights.copy_(whole.to(unit.weights.scalar_type()));
    }
    if (piece == pieces_.end() || piece->index != unit.index) continue;
    const at::Tensor target = piece->master();
    target.copy_(whole.narrow(0, piece->first, target.size(0)));
    ++piece;
  }
}

void ModelWorker::write_states(const fs::path& folder, SavedFiles& saved) {
  const std::vector<spec::WholeState> states = whole_states();
  std::vector<weights::TensorInfo> infos;
  infos.reserve(states.size());
  for (const spec::WholeState& state : states)
    infos.push_back(
        {state.name, weights::dtype_name(bridge::to_aten(state.dtype)), {state.elements}});
  saved.add(CollectiveFiles(groups_.world(), weights::one_file(folder / kOptimizerFile, infos),
                            {{kKindKey, std::string(to_string(optimizer_->spec().kind))},
                             {kStepsKey, std::to_string(optimizer_->steps())}},
                            weights::Sync::kByCaller),
            [&](const PartVisit& visit) { visit_own_states(states, visit); });
}

void ModelWorker::visit_own_states(const std::vector<spec::WholeState>& all,
                                   const PartVisit& visit) const {
  const std::vector<spec::FlatUnit> units = whole_trained_layout();
  const std::int64_t rank = groups_.shards().rank();
  std::vector<FilePart> parts;
  for (const spec::WholeState& state : placement_->states()) {
    const std::size_t number = number_of(all, state.name);
    if (!writes_unit(units[all[number].unit]) || !writes_slice(number)) continue;
    for (const spec::OwnedRange& owner : placement_->owners(state)) {
      if (owner.rank != rank) continue;
      const std::vector<weights::PartRun> runs =
          cuts_ ? trained_cuts().runs(state, shard().rank)
                : std::vector<weights::PartRun>{{0, 0, state.elements}};
      parts.push_back({number, own_part(state), weights::within(runs, owner.first, owner.count)});
    }
    if (!cuts_) continue;
    if (rank == 0 && groups_.tensor().first()) add_padding(number, state, parts);
    // If columns are sharded, each row is a run.
    visit(std::exchange(parts, {}));
  }
  visit(parts);
}

void ModelWorker::add_padding(std::size_t number, const spec::WholeState& state,
                              std::vector<FilePart>& parts) const {
  const std::vector<weights::PartRun> padding = trained_cuts().padding(state);
  if (padding.empty()) return;
  const std::int64_t elements = padding.back().part + padding.back().count;
  parts.push_back(
      {number, at::zeros({elements}, at::dtype(bridge::to_aten(state.dtype))), padding});
}

void ModelWorker::restore_states(const fs::path& folder) {
  const std::string wanted(to_string(optimizer_->spec().kind));
  const weights::SafetensorsFile file = weights::SafetensorsFile::open(folder / kOptimizerFile);
  const auto kind = file.metadata().find(kKindKey);
  if (kind == file.metadata().end() || kind->second != wanted) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("{} has the state of the optimizer \"{}\"; the configuration has \"{}\"",
               file.path().string(), kind == file.metadata().end() ? "" : kind->second, wanted));
  }
  optimizer_->restore_steps(steps_of(file));
  if (cuts_) return restore_parts(file);
  weights::NamedTensors whole;
  std::vector<weights::NamedSlice> slices;
  for (const spec::WholeState& state : placement_->states()) {
    const at::Tensor mine = own_part(state);
    if (!mine.defined()) continue;
    if (mine.numel() == state.elements) {
      whole.emplace_back(state.name, mine);
      continue;
    }
    for (const spec::OwnedRange& owner : placement_->owners(state))
      if (owner.rank == groups_.shards().rank())
        slices.push_back({state.name, state.elements, owner.first, mine});
  }
  weights::load_tensors(file, whole);
  weights::load_slices(file, slices);
}

std::vector<spec::WholeState> ModelWorker::whole_states() const {
  if (has_stages())
    return spec::StatePlacement(optimizer_->spec(), whole_trained_layout()).states();
  if (!cuts_) return placement_->states();
  return spec::StatePlacement(optimizer_->spec(), trained_cuts().whole()).states();
}

void ModelWorker::restore_parts(const weights::SafetensorsFile& file) {
  const std::vector<spec::WholeState> parts = placement_->states();
  const std::vector<spec::WholeState> all = whole_states();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor mine = own_part(parts[i]);
    if (!mine.defined()) continue;
    const at::ScalarType dtype = bridge::to_aten(parts[i].dtype);
    const spec::WholeState& same = all[number_of(all, parts[i].name)];
    const at::Tensor whole = at::empty({same.elements}, at::dtype(dtype));
    weights::load_tensors(file, {{same.name, whole}});
    const at::Tensor part = at::zeros({parts[i].elements}, at::dtype(dtype));
    trained_cuts().take(parts[i], shard().rank, whole, part);
    for (const spec::OwnedRange& owner : placement_->owners(parts[i])) {
      const bool own = !placement_->sliced() || owner.rank == groups_.shards().rank();
      if (own) mine.copy_(part.narrow(0, owner.first, owner.count));
    }
  }
}

}  // namespace neap::train

#include "plan/results/memory_plan.h"

#include <algorithm>

#include "arena/host_storage.h"
#include "step/units/block_buffers.h"
#include "step/units/update_parts.h"

namespace neap::plan {
namespace {

template <class Items, class Id>
std::optional<std::size_t> position_of(const Items& items, Id id) {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.id == id; });
  if (found == items.end()) return std::nullopt;
  return static_cast<std::size_t>(found - items.begin());
}

Bytes bytes_of(const std::vector<PartPlan>& parts) {
  Bytes sum;
  for (const PartPlan& part : parts) sum += part.bytes;
  return sum;
}

// Whole pages for the largest part.
Bytes window_of(const std::vector<PartPlan>& parts) {
  Bytes most;
  for (const PartPlan& part : parts) most = std::max(most, part.bytes);
  return round_up(most, step::kWindowPage);
}

}  // namespace

std::vector<Bytes> HostedPlan::storages() const {
  std::vector<Bytes> out;
  const auto add = [&](Bytes bytes, std::size_t times = 1) {
    if (!bytes.is_zero()) out.insert(out.end(), times, bytes);
  };
  const auto add_all = [&](const std::vector<PartPlan>& parts) {
    for (const PartPlan& part : parts) add(part.bytes);
  };
  if (is_on_disk()) {
    add(weights_window() * step::kBlockSlots);
    add(gradients_window() * step::kBlockSlots);
  } else {
    add_all(blocks);
    add_all(gradients);
  }
  add_all(inputs);
  if (file_window.is_zero()) add_all(tables);
  add_all(table_gradients);
  if (is_on_disk()) {
    add(window * step::kUpdateWindows);
    add(slice_window * slice_slots);
  } else {
    add_all(states);
    add(slice + gradient_slice);
  }
  add(stored_buffer * 2);
  return out;
}

Bytes HostedPlan::pass_inputs() const {
  return inputs.empty() ? Bytes() : inputs.front().bytes / static_cast<std::uint64_t>(input_passes);
}

Bytes HostedPlan::bytes() const {
  return arena::HostStorage::taken(storages()) + tied_rows;
}

Bytes HostedPlan::on_disk() const {
  Bytes out = bytes_of(stored);
  if (!is_on_disk()) return out;
  if (file_window.is_zero()) out += bytes_of(blocks) + bytes_of(gradients);
  return out + bytes_of(states) + slice + gradient_slice;
}

Bytes HostedPlan::in_files() const {
  return file_window.is_zero() ? Bytes() : bytes_of(blocks) + bytes_of(tables);
}

Bytes HostedPlan::weights_window() const {
  return file_window.is_zero() ? window_of(blocks) : file_window;
}
Bytes HostedPlan::gradients_window() const {
  return window_of(gradients);
}

const spec::Checkpointing* MemoryPlan::checkpointing(spec::ModelId model) const {
  const auto found = std::find_if(activations.begin(), activations.end(),
                                  [&](const ActivationPlan& a) { return a.model == model; });
  return found == activations.end() ? nullptr : &found->checkpointing;
}

std::vector<std::pair<spec::SavedTensor, std::size_t>> ActivationPlan::recomputed() const {
  std::vector<std::pair<spec::SavedTensor, std::size_t>> out;
  for (const spec::SavedTensor tensor : tensors) {
    const auto blocks =
        std::count_if(checkpointing.blocks.begin(), checkpointing.blocks.end(),
                      [&](const spec::BlockRetention& block) { return !block.keeps(tensor); });
    if (blocks > 0) out.emplace_back(tensor, static_cast<std::size_t>(blocks));
  }
  return out;
}

namespace {

void add_scaled(std::vector<double>& to, const std::vector<double>& other, double times) {
  to.resize(std::max(to.size(), other.size()));
  for (std::size_t i = 0; i < other.size(); ++i) to[i] += times * other[i];
}

}  // namespace

void add_work(PhasePlan& to, const PhasePlan& other, std::int64_t times) {
  const auto n = static_cast<std::uint64_t>(times);
  const auto runs = static_cast<double>(times);
  to.seconds += runs * other.seconds;
  to.fetched += other.fetched * n;
  to.stored += other.stored * n;
  to.wait_seconds += runs * other.wait_seconds;
  to.sent += other.sent * n;
  to.peer_seconds += runs * other.peer_seconds;
  for (std::size_t a = 0; a < spec::kAxes; ++a) to.axis_seconds[a] += runs * other.axis_seconds[a];
  add_scaled(to.passes.forward, other.passes.forward, runs);
  add_scaled(to.passes.backward, other.passes.backward, runs);
  add_scaled(to.passes.weights, other.passes.weights, runs);
  to.passes.sums += runs * other.passes.sums;
  to.passes.update += runs * other.passes.update;
  to.flops += runs * other.flops;
  to.disk_read += other.disk_read * n;
  to.disk_written += other.disk_written * n;
}

std::size_t MemoryPlan::cycle() const {
  std::size_t n = phases.size();
  while (n > 0 && phases[n - 1].times == 0) --n;
  return n;
}

std::optional<std::size_t> MemoryPlan::index_of(spec::TagId tag) const {
  return position_of(tags, tag);
}

std::optional<std::size_t> MemoryPlan::index_of(spec::PhaseId phase) const {
  return position_of(phases, phase);
}

Bytes MemoryPlan::outside_bytes() const {
  Bytes sum;
  for (const TagPlan& tag : tags)
    if (tag.is_outside()) sum += tag.bytes;
  return sum;
}

bool MemoryPlan::in_cycle(const TagPlan& tag) const {
  return std::any_of(tag.need.begin(), tag.need.begin() + static_cast<std::ptrdiff_t>(cycle()),
                     [](Need need) { return need == Need::kNeed; });
}

double MemoryPlan::seconds() const {
  return operation_seconds() + move_seconds;
}

double MemoryPlan::operation_seconds() const {
  double sum = 0;
  for (std::size_t p = 0; p < cycle(); ++p) sum += phases[p].share * phases[p].seconds;
  return sum;
}

double MemoryPlan::stage_wait_seconds() const {
  double sum = 0;
  for (std::size_t p = 0; p < cycle(); ++p)
    sum += phases[p].share * (phases[p].transfer_seconds + phases[p].bubble_seconds);
  return sum;
}

Bytes MemoryPlan::streamed_per_step() const {
  double sum = 0;
  for (std::size_t p = 0; p < cycle(); ++p)
    sum += phases[p].share * static_cast<double>((phases[p].fetched + phases[p].stored).count());
  return Bytes(static_cast<std::uint64_t>(sum));
}

double MemoryPlan::waiting_seconds() const {
  double sum = move_seconds;
  for (std::size_t p = 0; p < cycle(); ++p) sum += phases[p].share * phases[p].wait_seconds;
  return sum;
}

double Link::seconds(Bytes out, Bytes in, Bytes mapped) const {
  const Bytes shared = std::min(out, in);
  const auto bytes = [](Bytes b) { return static_cast<double>(b.count()); };
  return 2 * bytes(shared) / both + bytes(out - shared) / to_host + bytes(in - shared) / to_device +
         bytes(mapped) * remap;
}

}  // namespace neap::plan

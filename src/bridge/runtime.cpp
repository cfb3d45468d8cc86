#include "bridge/runtime.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "bridge/phase_accounts.h"
#include "bridge/phase_transients.h"
#include "bridge/torch_cuda_memory.h"
#include "plan/counting/tags.h"
#include "plan/counting/transients.h"
#include "step/units/block_buffers.h"
#include "step/units/gradient_slots.h"

namespace neap::bridge {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class RuntimeImpl final : public Runtime {
 public:
  RuntimeImpl(const spec::Job& job, const plan::DeviceChoice& choice, const plan::MemoryPlan& plan,
              trace::EventSink* events);

  [[nodiscard]] at::Device device() const override { return context_.torch(); }
  [[nodiscard]] at::ScalarType compute_dtype() const override { return context_.dtype(); }
  [[nodiscard]] const plan::MemoryPlan& plan() const override { return plan_; }
  [[nodiscard]] const DeviceContext& context() const override { return context_; }
  [[nodiscard]] SlotPart part(spec::TagId tag, std::string_view name) const override;
  [[nodiscard]] at::Tensor region(spec::TagId tag, std::string_view name,
                                  at::ScalarType dtype) override;
  [[nodiscard]] StreamedBlocks& streamed_blocks(spec::TagId tag) override;
  [[nodiscard]] StreamedSlices* streamed_slices(spec::TagId tag) override;
  [[nodiscard]] StreamedStates* streamed_states(spec::TagId tag) override;
  [[nodiscard]] std::unique_ptr<Scope> hold(const std::vector<spec::TagId>& tags) override;
  [[nodiscard]] std::unique_ptr<Scope> phase(spec::PhaseId id) override;
  void note_peers(const PeerUse& use) override { peers_ += use; }
  [[nodiscard]] std::vector<PhaseMeasurement> take_measurements() override {
    return accounts_->take();
  }
  [[nodiscard]] Status last_oom() const override { return accounts_->last_oom(); }
  [[nodiscard]] Bytes peak() const override {
    return std::max(accounts_->peak(), arena_->stats().peak_physical);
  }
  [[nodiscard]] Bytes peak_allocated() const override { return accounts_->peak_allocated(); }
  [[nodiscard]] arena::Arena& arena() override { return *arena_; }

 private:
  void mark(trace::EventKind kind, std::string_view name);
  void leave_room(std::size_t phase);
  /// Whether `next` begins with the pages of the pool of `phase`.
  [[nodiscard]] bool pool_stays(std::size_t phase, std::size_t next) const;
  void give_pool_back();
  void add_streamed(std::size_t index);
  [[nodiscard]] std::vector<SlotPart> slots_of(const plan::TagPlan& tag) const;
  [[nodiscard]] Status end_phase(std::size_t index, Transition entry, Clock::time_point start);
  [[nodiscard]] Status count_streamed(PhaseMeasurement& m);

  plan::MemoryPlan plan_;
  trace::EventSink* events_;
  DeviceContext context_;
  std::shared_ptr<arena::Arena> arena_;  // keeps the device alive
  std::unique_ptr<ScheduleExecutor> executor_;
  std::map<std::size_t, StreamedBlocks> streamed_blocks_;  // by tag
  std::map<std::size_t, StreamedSlices> streamed_slices_;
  std::map<std::size_t, StreamedStates> streamed_states_;
  std::unique_ptr<PhaseTransients> transients_;
  std::unique_ptr<PhaseAccounts> accounts_;
  std::optional<std::size_t> pool_of_;  // the phase whose pool has kept its pages
  PeerUse peers_;                       // of the open phase
  bool in_phase_ = false;
};

/// Stays in a context until close() or destruction. Runs `end` once before leaving it.
class ScopeImpl : public Runtime::Scope {
 public:
  ScopeImpl(std::string what, std::unique_ptr<DeviceContext::Entered> entered,
            std::function<Status()> end)
      : what_(std::move(what)), entered_(std::move(entered)), end_(std::move(end)) {}
  ScopeImpl(const ScopeImpl&) = delete;
  ScopeImpl& operator=(const ScopeImpl&) = delete;
  ~ScopeImpl() override {
    // Must not throw: an exception may be in flight.
    if (const Status status = close(); !status.ok())
      log::error(format("{} failed: {}", what_, status.message()));
  }
  [[nodiscard]] Status close() override {
    if (!end_) return {};
    const std::unique_ptr<DeviceContext::Entered> left_last = std::move(entered_);
    const std::function<Status()> end = std::exchange(end_, nullptr);
    try {
      return end();
    } catch (const Error& e) {
      return e.status();
    } catch (const std::exception& e) {
      return {ErrorCode::kInternal, e.what()};
    }
  }

 private:
  std::string what_;
  std::unique_ptr<DeviceContext::Entered> entered_;
  std::function<Status()> end_;
};

RuntimeImpl::RuntimeImpl(const spec::Job& job, const plan::DeviceChoice& choice,
                         const plan::MemoryPlan& plan, trace::EventSink* events)
    : plan_(plan), events_(events), context_(job, choice) {
  arena::Options options;
  options.events = events;
  // Recycled pages must not raise the peak above the plan's.
  options.physical_target = plan.peak - plan.outside_bytes();
  if (!job.memory.nvme_path.empty())
    options.disk_folder = job.resolve(job.memory.nvme_path).string();
  if (!job.memory.host_budget.is_zero()) options.host_budget = job.memory.host_budget;
  std::unique_ptr<arena::Arena> arena =
      value_or_throw(arena::Arena::make(*context_.device(), options));
  arena_ = {arena.release(), [device = context_.device()](arena::Arena* a) { delete a; }};
  executor_ = std::make_unique<ScheduleExecutor>(*arena_, plan_, context_.stream(),
                                                 [this] { give_pool_back(); });
  for (std::size_t t = 0; t < plan_.tags.size(); ++t) add_streamed(t);
  if (choice.target.cuda) {
    const DeviceContext::Entered entered(context_);
    transients_ = make_cuda_transients(context_.torch().index());
  } else {
    transients_ = make_host_transients(
        arena_, value_or_throw(plan::pool_settings(job, choice.target)), events);
  }
  accounts_ = std::make_unique<PhaseAccounts>(job.device.memory, *executor_, plan_);
}

std::vector<SlotPart> RuntimeImpl::slots_of(const plan::TagPlan& tag) const {
  std::vector<SlotPart> out;
  for (const plan::RegionPlan& region : tag.regions) {
    for (const plan::PartPlan& part : region.parts) {
      const ScheduleExecutor::Place place = executor_->place(tag.id, part.name);
      out.push_back({part.name, place.region, place.offset});
    }
  }
  return out;
}

void RuntimeImpl::add_streamed(std::size_t index) {
  using step::BufferOf;
  const plan::TagPlan& tag = plan_.tags[index];
  const plan::HostedPlan& hosted = tag.hosted;
  throw_if_error(arena::HostStorage::reserve(*arena_, tag.name(), hosted.storages()));
  if (!hosted.states.empty()) {
    std::vector<Bytes> sizes(hosted.states.size());
    std::ranges::transform(hosted.states, sizes.begin(), &plan::PartPlan::bytes);
    streamed_states_.emplace(std::piecewise_construct, std::forward_as_tuple(index),
                             std::forward_as_tuple(*arena_, context_.stream(), tag.name(),
                                                   slots_of(tag), std::move(sizes), hosted.window));
  }
  const auto add_slice = [&](Bytes slice, step::StreamedKind kind) {
    if (slice.is_zero()) return;
    std::vector<SlotPart> slots = slots_of(tag);
    std::erase_if(slots, [&](const SlotPart& each) {
      return kind == step::StreamedKind::kGradients
                 ? !step::is_own_slot(each.name)
                 : step::is_block_buffer(each.name, BufferOf::kInputs);
    });
    streamed_slices_.emplace(
        std::piecewise_construct, std::forward_as_tuple(index),
        std::forward_as_tuple(*arena_, context_.stream(), tag.name(), std::move(slots), slice, kind,
                              hosted.slice_window));
  };
  add_slice(hosted.slice, step::StreamedKind::kWeights);
  add_slice(hosted.gradient_slice, step::StreamedKind::kGradients);
  if (hosted.blocks.empty() && hosted.inputs.empty()) return;
  const std::vector<SlotPart> parts = slots_of(tag);
  const auto find = [&](const std::string& name) -> std::optional<SlotPart> {
    const auto found = std::ranges::find(parts, name, &SlotPart::name);
    return found == parts.end() ? std::nullopt : std::optional(*found);
  };
  std::vector<StreamedBlocks::Slot> slots;
  for (std::size_t i = 0; i < step::kBlockSlots; ++i)
    slots.push_back({find(step::block_buffer(BufferOf::kWeights, i)),
                     find(step::block_buffer(BufferOf::kGradients, i)),
                     find(step::block_buffer(BufferOf::kInputs, i))});
  const auto bytes_at = [](const std::vector<plan::PartPlan>& of, std::size_t i) {
    return i < of.size() ? of[i].bytes : Bytes();
  };
  std::vector<StreamedBlocks::UnitBytes> blocks;
  for (const plan::PartPlan& block : hosted.blocks.empty() ? hosted.inputs : hosted.blocks) {
    const std::size_t i = blocks.size();
    blocks.push_back({block.name, bytes_at(hosted.blocks, i), bytes_at(hosted.gradients, i),
                      bytes_at(hosted.inputs, i)});
  }
  StreamedBlocks::Tables tables{{}, hosted.turns, {}};
  for (const plan::PartPlan& table : hosted.tables)
    tables.units.push_back(
        {table.name, table.bytes, bytes_at(hosted.table_gradients, tables.units.size())});
  if (hosted.turns.any())
    tables.slot =
        StreamedBlocks::Slot{part(tag.id, step::table_buffer(BufferOf::kWeights)),
                             find(step::table_buffer(BufferOf::kGradients)), std::nullopt};
  streamed_blocks_.emplace(
      std::piecewise_construct, std::forward_as_tuple(index),
      std::forward_as_tuple(
          *arena_, context_.stream(), tag.name(), std::move(slots), blocks, tables,
          hosted.is_on_disk() && !hosted.blocks.empty()
              ? StreamedBlocks::OnDisk{hosted.weights_window(), hosted.gradients_window(),
                                       !hosted.file_window.is_zero()}
              : StreamedBlocks::OnDisk{},
          hosted.input_passes));
}

StreamedBlocks& RuntimeImpl::streamed_blocks(spec::TagId tag) {
  return streamed_blocks_.at(executor_->tag_index(tag));
}

StreamedSlices* RuntimeImpl::streamed_slices(spec::TagId tag) {
  const auto found = streamed_slices_.find(executor_->tag_index(tag));
  return found == streamed_slices_.end() ? nullptr : &found->second;
}

StreamedStates* RuntimeImpl::streamed_states(spec::TagId tag) {
  const auto found = streamed_states_.find(executor_->tag_index(tag));
  return found == streamed_states_.end() ? nullptr : &found->second;
}

SlotPart RuntimeImpl::part(spec::TagId tag, std::string_view name) const {
  const ScheduleExecutor::Place place = executor_->place(tag, name);
  return {std::string(name), place.region, place.offset};
}

at::Tensor RuntimeImpl::region(spec::TagId tag, std::string_view name, at::ScalarType dtype) {
  const ScheduleExecutor::Place place = executor_->place(tag, name);
  const auto elements = static_cast<std::int64_t>(place.bytes.count() / c10::elementSize(dtype));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are known by address
  void* const data = reinterpret_cast<void*>(place.address);
  return at::from_blob(
      data, {elements}, [](void*) {}, at::TensorOptions().dtype(dtype).device(context_.torch()),
      context_.torch());
}

std::unique_ptr<Runtime::Scope> RuntimeImpl::hold(const std::vector<spec::TagId>& tags) {
  auto entered = std::make_unique<DeviceContext::Entered>(context_);
  ScheduleExecutor::Set before = executor_->resident();
  (void)executor_->bring(tags);
  return std::make_unique<ScopeImpl>("Putting tags back", std::move(entered), [this, before] {
    (void)executor_->put_back(before);
    return Status();
  });
}

std::unique_ptr<Runtime::Scope> RuntimeImpl::phase(spec::PhaseId id) {
  const std::string name(to_string(id));
  if (in_phase_)
    throw Error(ErrorCode::kInternal, format("Phase \"{}\" opened inside another", name));
  const std::size_t index = executor_->phase_index(id);
  auto entered = std::make_unique<DeviceContext::Entered>(context_);
  Transition entry;
  try {
    entry = executor_->enter(index);
  } catch (const Error& e) {
    throw Error(Status(e.status()).with_context(format("entering phase \"{}\"", name)));
  }
  if (pool_of_ && !pool_stays(*pool_of_, index)) give_pool_back();
  leave_room(index);
  const Clock::time_point start = Clock::now();
  for (auto& [tag, blocks] : streamed_blocks_) throw_if_error(blocks.open());
  for (auto& [tag, slices] : streamed_slices_) throw_if_error(slices.open());
  transients_->open(std::string(name), accounts_->room());
  in_phase_ = true;
  mark(trace::EventKind::kPhaseBegin, name);
  return std::make_unique<ScopeImpl>(
      format("Closing phase \"{}\"", name), std::move(entered),
      [this, index, entry = std::move(entry), start] { return end_phase(index, entry, start); });
}

bool RuntimeImpl::pool_stays(std::size_t phase, std::size_t next) const {
  const std::vector<spec::PhaseId>& followers = plan_.phases[phase].pool_for;
  return std::find(followers.begin(), followers.end(), plan_.phases[next].id) != followers.end();
}

void RuntimeImpl::give_pool_back() {
  if (std::exchange(pool_of_, std::nullopt)) transients_->give_back();
}

// The arena keeps pages for the next tag. Together with libtorch's allocator they must stay under
// the limit and within the GPU's free memory, because libraries and other processes may take more
// than the plan has for them. On the CPU both take pages from the arena.
void RuntimeImpl::leave_room(std::size_t phase) {
  const Bytes store = arena_->stats().page_store;
  if (!context_.torch().is_cuda() || store.is_zero()) return;
  const Bytes kept = transients_->kept();
  const Bytes pool = std::max(plan_.phases[phase].transient + kTorchCudaSegment, kept);
  Bytes most = store;
  if (!plan_.capacity.is_zero())
    most = std::min(most, saturating_sub(plan_.capacity, executor_->persistent() + pool));
  const device::MemoryInfo memory = value_or_throw(context_.device()->memory());
  most = std::min(most, saturating_sub(store + memory.free + kept, pool));
  if (store > most) (void)value_or_throw(arena_->release_store(most));
}

Status RuntimeImpl::end_phase(std::size_t index, Transition entry, Clock::time_point start) {
  in_phase_ = false;
  const std::string name = plan_.phases[index].name();
  const bool cuda = context_.torch().is_cuda();
  // Synchronises the compute stream only. Copies that overlap with the phase are waited for below.
  const Status finished = cuda ? context_.device()->synchronize(context_.stream()) : Status();
  PhaseMeasurement m;
  m.phase = plan_.phases[index].id;
  m.peers = std::exchange(peers_, {});
  m.seconds = seconds_since(start);
  Status fetched;
  for (auto& [tag, blocks] : streamed_blocks_) {
    if (Status closed = blocks.close(); !closed.ok()) fetched = std::move(closed);
  }
  for (auto& [tag, slices] : streamed_slices_) {
    if (Status closed = slices.close(); !closed.ok()) fetched = std::move(closed);
  }
  if (Status counted = count_streamed(m); fetched.ok()) fetched = std::move(counted);
  // Before the pool is emptied, because the driver waits for all copies when memory is freed.
  const Status copied = executor_->finish_copies(m.behind);
  m.entry = std::move(entry);
  m.persistent = executor_->persistent();
  const bool keeps = !plan_.phases[index].pool_for.empty();
  const TransientUse use = transients_->close(name, keeps);
  pool_of_ = keeps ? std::optional(index) : std::nullopt;
  m.transient_allocated = use.allocated;
  m.transient_reserved = use.reserved;
  m.fragmentation_at_peak = use.fragmentation;
  if (use.refused) {
    const Result<device::MemoryInfo> memory = context_.device()->memory();
    device::MemoryInfo after = memory.ok() ? *memory : device::MemoryInfo();
    if (keeps) after.free += m.transient_reserved;
    accounts_->note_oom(m, *use.refused, after);
  }
  const Status within = accounts_->add(std::move(m));
  mark(trace::EventKind::kPhaseEnd, name);
  for (const Status& status : {finished, fetched, copied})
    if (!status.ok()) return Status(status).with_context(format("ending phase \"{}\"", name));
  return cuda ? within : Status();
}

// After the device's work, because its waits are known only then.
Status RuntimeImpl::count_streamed(PhaseMeasurement& m) {
  const auto add = [&](std::size_t tag, Result<LinkUses> uses) -> Status {
    if (!uses.ok()) return uses.status();
    for (const step::StreamedKind kind : step::kStreamedKinds) {
      const LinkUse& use = (*uses)[index_of(kind)];
      if (!(use.to_device + use.to_host).is_zero())
        m.streamed.push_back({plan_.tags[tag].id, kind, use});
    }
    return {};
  };
  for (auto& [tag, blocks] : streamed_blocks_) NEAP_TRY(add(tag, blocks.take_use()));
  for (auto& [tag, slices] : streamed_slices_) NEAP_TRY(add(tag, slices.take_use()));
  for (auto& [tag, states] : streamed_states_) NEAP_TRY(add(tag, states.take_use()));
  return {};
}

void RuntimeImpl::mark(trace::EventKind kind, std::string_view name) {
  if (events_ == nullptr) return;
  trace::Event event;
  event.kind = kind;
  event.name = events_->intern(name);
  events_->record(event);
}

}  // namespace

Bytes PhaseMeasurement::streamed_to_device() const {
  Bytes sum;
  for (const StreamedUse& s : streamed) sum += s.use.to_device;
  return sum;
}

Bytes PhaseMeasurement::streamed_to_host() const {
  Bytes sum;
  for (const StreamedUse& s : streamed) sum += s.use.to_host;
  return sum;
}

Bytes PhaseMeasurement::moved() const {
  Bytes sum = entry.copied() + streamed_to_device() + streamed_to_host();
  for (const MoveRecord& move : behind) sum += move.copied;
  return sum;
}

double PhaseMeasurement::move_seconds() const {
  double sum = entry.seconds;
  for (const MoveRecord& move : behind) sum += move.visible_seconds;
  return sum;
}

std::unique_ptr<Runtime> Runtime::make(const spec::Job& job, const plan::DeviceChoice& choice,
                                       const plan::MemoryPlan& plan, trace::EventSink* events) {
  return std::make_unique<RuntimeImpl>(job, choice, plan, events);
}

at::Tensor to_host(const at::Tensor& t) {
  const HostScope scope;
  at::Tensor copy = at::empty(t.sizes(), t.options().device(at::kCPU));
  copy.copy_(t);
  return copy;
}

}  // namespace neap::bridge

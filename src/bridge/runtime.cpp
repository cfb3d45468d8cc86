#include "bridge/runtime.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "base/format.h"
#include "base/log.h"
#include "bridge/attention.h"
#include "bridge/schedule_executor.h"
#include "bridge/torch_cuda.h"
#include "bridge/torch_cuda_memory.h"
#include "bridge/transient_pool.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "plan/transients.h"

namespace neap::bridge {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What the system can give without swapping.
Bytes available_host_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return Bytes(kib * 1024);
  }
  throw Error(ErrorCode::kUnsupported, "/proc/meminfo has no MemAvailable; set device.memory");
}

/// What a phase's temporaries took; the two devices count them in different places.
struct TransientUse {
  Bytes allocated, reserved, fragmentation;
};
class Transients {
 public:
  virtual ~Transients() = default;
  /// `room`: what the phase's temporaries may take; zero: as much as there is.
  virtual void open(const std::string& phase, Bytes room) = 0;
  virtual TransientUse close(const std::string& phase) = 0;
};

class HostTransients final : public Transients {
 public:
  HostTransients(std::shared_ptr<arena::Arena> arena, const cache::Settings& settings,
                 trace::EventSink* events)
      : pool_(TransientPool::make(std::move(arena), settings, events)) {}
  // The device itself has the ceiling as its capacity.
  void open(const std::string& phase, Bytes) override { pool_->open(phase); }
  TransientUse close(const std::string& phase) override {
    const cache::CacheStats stats = pool_->stats();
    const Bytes alive = pool_->close();
    if (!alive.is_zero() && alive != alive_) {
      log::warn(format("{} of tensors outlive phase \"{}\": their pages cannot serve the next one",
                       alive, phase));
    }
    alive_ = alive;
    return {stats.peak_allocated, stats.peak_reserved, stats.fragmentation_at_peak};
  }

 private:
  std::shared_ptr<TransientPool> pool_;
  Bytes alive_;
};

class CudaTransients final : public Transients {
 public:
  explicit CudaTransients(c10::DeviceIndex index) : index_(index) {
    limit_torch_cuda(index, Bytes());  // an earlier runtime's
    make_cublas_workspace(index);
  }
  void open(const std::string&, Bytes room) override {
    // What was born and died between phases left pages that the plan does not know.
    allocator().emptyCache();
    limit_torch_cuda(index_, room.is_zero() ? room : room + kTorchCudaSegment);
    allocator().resetPeakStats(index_);
  }
  TransientUse close(const std::string&) override {
    const auto stats = allocator().getDeviceStats(index_);
    const auto peak = [](const auto& array) {
      return Bytes(static_cast<std::uint64_t>(array[0].peak));
    };
    allocator().emptyCache();
    const Bytes allocated = peak(stats.allocated_bytes);
    const Bytes reserved = peak(stats.reserved_bytes);
    return {allocated, reserved, saturating_sub(reserved, allocated)};
  }

 private:
  static c10::DeviceAllocator& allocator() {
    return *c10::getDeviceAllocator(c10::DeviceType::CUDA);
  }
  c10::DeviceIndex index_;
};

class RuntimeImpl final : public Runtime {
 public:
  RuntimeImpl(const spec::Job& job, const plan::MemoryPlan& plan, trace::EventSink* events);

  [[nodiscard]] at::Device device() const override { return torch_device_; }
  [[nodiscard]] at::ScalarType compute_dtype() const override { return dtype_; }
  [[nodiscard]] const plan::MemoryPlan& plan() const override { return plan_; }
  [[nodiscard]] at::Tensor region(std::string_view tag, std::string_view name,
                                  at::ScalarType dtype) override;
  [[nodiscard]] std::unique_ptr<Guard> hold(const std::vector<std::string>& tags) override;
  [[nodiscard]] std::unique_ptr<Guard> phase(std::string_view name) override;
  [[nodiscard]] std::vector<PhaseMeasurement> take_measurements() override {
    if (!over_ceiling_.ok()) throw Error(over_ceiling_);
    return std::exchange(measurements_, {});
  }
  [[nodiscard]] Status last_oom() const override { return last_oom_; }
  [[nodiscard]] Bytes peak() const override {
    return std::max(peak_, arena_->stats().peak_physical);
  }
  [[nodiscard]] Bytes peak_allocated() const override { return peak_allocated_; }
  [[nodiscard]] arena::Arena& arena() override { return *arena_; }

 private:
  friend class PhaseGuard;
  friend class HoldGuard;
  void mark(trace::EventKind kind, std::string_view name);
  void end_phase(std::size_t index, ScheduleExecutor::Moved moved, Clock::time_point start);
  void check_ceiling(const std::string& phase, const PhaseMeasurement& m);

  plan::MemoryPlan plan_;
  trace::EventSink* events_;
  at::Device torch_device_{at::kCPU};
  at::ScalarType dtype_ = at::kFloat;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<arena::Arena> arena_;  // keeps the device
  std::unique_ptr<ScheduleExecutor> executor_;
  std::unique_ptr<Transients> transients_;
  struct Part {
    device::Address address = 0;
    Bytes bytes;
  };
  std::map<std::pair<std::string, std::string>, Part> parts_;  // (tag, part): plan::PartPlan
  std::vector<PhaseMeasurement> measurements_;
  Bytes peak_, peak_allocated_;
  bool in_phase_ = false;
  Bytes ceiling_;  // what the user set, whatever the plan made of it; zero: none
  // CUDA: libtorch's allocator is limited to what the ceiling leaves it, give or take a segment. A phase that used
  // that slack fails the run at its end.
  Status over_ceiling_;
  Status last_oom_;  // CUDA: the last time that libtorch's allocator gave up
  std::uint64_t oom_count_ = last_torch_cuda_oom().count;  // an earlier runtime's are not ours
};

class PhaseGuard final : public Runtime::Guard {
 public:
  PhaseGuard(RuntimeImpl& runtime, std::size_t index, ScheduleExecutor::Moved moved)
      : runtime_(runtime), index_(index), moved_(moved), start_(Clock::now()) {}
  ~PhaseGuard() override {
    // A failure here must not hide the exception that may be under way.
    try {
      runtime_.end_phase(index_, moved_, start_);
    } catch (const std::exception& e) {
      log::error(format("Closing a phase failed: {}", e.what()));
    }
  }

 private:
  RuntimeImpl& runtime_;
  std::size_t index_;
  ScheduleExecutor::Moved moved_;
  Clock::time_point start_;
};

class HoldGuard final : public Runtime::Guard {
 public:
  HoldGuard(RuntimeImpl& runtime, ScheduleExecutor::Set before)
      : runtime_(runtime), before_(std::move(before)) {}
  ~HoldGuard() override {
    try {
      runtime_.executor_->move_to(before_);
    } catch (const std::exception& e) {
      log::error(format("Putting tags back failed: {}", e.what()));
    }
  }

 private:
  RuntimeImpl& runtime_;
  ScheduleExecutor::Set before_;
};

RuntimeImpl::RuntimeImpl(const spec::Job& job, const plan::MemoryPlan& plan,
                         trace::EventSink* events)
    : plan_(plan), events_(events), ceiling_(job.device.memory) {
  pin_attention(job.trainer.deterministic);
  const Runtime::Choice choice = Runtime::choose(job.device);
  if (choice.target.cuda) {
    torch_device_ = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(job.device.ordinal));
    dtype_ = at::kBFloat16;
    device::CudaOptions options;
    options.ordinal = static_cast<int>(job.device.ordinal);
    options.capacity = choice.target.capacity;
    device_ = value_or_throw(device::make_cuda_device(options));
  } else {
    device::HostOptions options;
    options.capacity = choice.target.capacity;
    options.granularity = choice.target.granularity;
    device_ = value_or_throw(device::make_host_device(options));
  }
  if (job.device.dtype == "float32") dtype_ = at::kFloat;
  if (job.device.dtype == "bfloat16") dtype_ = at::kBFloat16;

  arena::Options options;
  options.events = events;
  options.physical_target =
      plan.peak;  // recycled pages must not raise the high-water mark that was promised
  if (!job.memory.host_budget.is_zero()) options.host_budget = job.memory.host_budget;
  std::unique_ptr<arena::Arena> arena = value_or_throw(arena::Arena::make(*device_, options));
  arena_ = {arena.release(), [device = device_](arena::Arena* a) { delete a; }};
  for (const plan::TagPlan& tag : plan_.tags) {
    for (const plan::RegionPlan& region : tag.regions) {
      const arena::RegionInfo info =
          value_or_throw(arena_->create_paused(tag.tag, region.bytes, arena::Policy::kHost));
      for (const plan::PartPlan& part : region.parts) {
        parts_.emplace(std::pair(tag.tag, part.name),
                       Part{info.address + part.offset.count(), part.bytes});
      }
    }
  }
  executor_ = std::make_unique<ScheduleExecutor>(*arena_, plan_);
  if (choice.target.cuda) {
    transients_ = std::make_unique<CudaTransients>(torch_device_.index());
  } else {
    const cache::Settings settings = value_or_throw(plan::pool_settings(job, choice.target));
    transients_ = std::make_unique<HostTransients>(arena_, settings, events);
  }
}

at::Tensor RuntimeImpl::region(std::string_view tag, std::string_view name, at::ScalarType dtype) {
  const auto it = parts_.find(std::pair(std::string(tag), std::string(name)));
  if (it == parts_.end())
    throw Error(ErrorCode::kNotFound,
                format("The plan has no part \"{}\" in tag \"{}\"", name, tag));
  const auto elements =
      static_cast<std::int64_t>(it->second.bytes.count() / c10::elementSize(dtype));
  return at::from_blob(
      reinterpret_cast<void*>(it->second.address), {elements}, [](void*) {},
      at::TensorOptions().dtype(dtype).device(torch_device_), torch_device_);
}

std::unique_ptr<Runtime::Guard> RuntimeImpl::hold(const std::vector<std::string>& tags) {
  ScheduleExecutor::Set before = executor_->resident();
  executor_->bring(tags);
  return std::make_unique<HoldGuard>(*this, std::move(before));
}

std::unique_ptr<Runtime::Guard> RuntimeImpl::phase(std::string_view name) {
  if (!over_ceiling_.ok()) throw Error(over_ceiling_);
  if (in_phase_)
    throw Error(ErrorCode::kInternal, format("Phase \"{}\" opened inside another", name));
  const std::size_t index = executor_->phase_index(name);
  ScheduleExecutor::Moved moved;
  try {
    moved = executor_->enter(index);
  } catch (const Error& e) {
    throw Error(Status(e.status()).with_context(format("entering phase \"{}\"", name)));
  }
  in_phase_ = true;
  mark(trace::EventKind::kPhaseBegin, name);
  const Bytes persistent = executor_->persistent();
  // An exhausted ceiling leaves one byte: zero would be no limit.
  transients_->open(
      std::string(name),
      ceiling_.is_zero() ? Bytes() : std::max(saturating_sub(ceiling_, persistent), Bytes(1)));
  return std::make_unique<PhaseGuard>(*this, index, moved);
}

void RuntimeImpl::end_phase(std::size_t index, ScheduleExecutor::Moved moved,
                            Clock::time_point start) {
  in_phase_ = false;
  const std::string& name = plan_.phases[index].name;
  if (torch_device_.is_cuda()) throw_if_error(device_->synchronize());
  PhaseMeasurement m;
  m.phase = name;
  m.seconds = seconds_since(start);
  m.move_seconds = moved.seconds;
  m.moved = moved.copied;
  m.persistent = executor_->persistent();
  const TransientUse use = transients_->close(name);
  m.transient_allocated = use.allocated;
  m.transient_reserved = use.reserved;
  m.fragmentation_at_peak = use.fragmentation;
  m.peak = m.persistent + use.reserved;
  peak_ = std::max(peak_, m.peak);
  peak_allocated_ = std::max(peak_allocated_, m.persistent + use.allocated);
  if (torch_device_.is_cuda()) check_ceiling(name, m);
  measurements_.push_back(std::move(m));
  mark(trace::EventKind::kPhaseEnd, name);
}

void RuntimeImpl::check_ceiling(const std::string& phase, const PhaseMeasurement& m) {
  const auto out_of_memory = [&](Bytes need, Bytes free) {
    MemoryShortage shortage{need, free, ceiling_, {{"temporaries", m.transient_reserved}}};
    for (std::size_t i = 0; i < plan_.tags.size(); ++i) {
      if (executor_->resident()[i])
        shortage.holders.push_back({plan_.tags[i].tag, plan_.tags[i].bytes});
    }
    return Status::out_of_memory(format("Phase \"{}\"", phase), std::move(shortage));
  };
  const TorchCudaOom oom = last_torch_cuda_oom();
  if (std::exchange(oom_count_, oom.count) != oom.count) {
    const Bytes free = ceiling_.is_zero() ? value_or_throw(device_->memory()).free
                                          : saturating_sub(ceiling_, m.peak);
    last_oom_ = out_of_memory(oom.requested, free);
  }
  if (!ceiling_.is_zero() && m.peak > ceiling_ && over_ceiling_.ok()) {
    over_ceiling_ = out_of_memory(m.peak, ceiling_);
  }
}

void RuntimeImpl::mark(trace::EventKind kind, std::string_view name) {
  if (events_ == nullptr) return;
  trace::Event event;
  event.kind = kind;
  event.name = events_->intern(name);
  events_->record(event);
}

}  // namespace

Runtime::Choice Runtime::choose(const spec::DeviceConfig& config) {
  Choice choice;
  plan::Target& target = choice.target;
  target.threads = at::get_num_threads();
  if (config.kind != "host") {
    const TorchCuda& cuda = torch_cuda();
    if (cuda.available && config.ordinal >= cuda.devices) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("device.ordinal is {}; this machine has {} GPUs, counted from 0",
                         config.ordinal, cuda.devices));
    }
    target.cuda = cuda.available;
    if (!cuda.available && config.kind == "cuda") {
      throw Error(ErrorCode::kUnsupported, format("device.kind is \"cuda\", but {}", cuda.reason));
    }
  }
  if (target.cuda) {
    const auto device = value_or_throw(device::make_cuda_device(static_cast<int>(config.ordinal)));
    choice.name = device->info().name;
    if (const int count = cuda_multiprocessors(static_cast<int>(config.ordinal)); count > 0)
      target.multiprocessors = count;
    target.granularity = device->info().granularity;
    target.capacity =
        config.memory.is_zero() ? value_or_throw(device->memory()).free : config.memory;
  } else {
    choice.name = "host memory";
    target.capacity = config.memory.is_zero() ? available_host_memory() : config.memory;
  }
  return choice;
}

std::unique_ptr<Runtime> Runtime::make(const spec::Job& job, const plan::MemoryPlan& plan,
                                       trace::EventSink* events) {
  return std::make_unique<RuntimeImpl>(job, plan, events);
}

at::Tensor to_host(const at::Tensor& t) {
  const HostScope scope;
  at::Tensor copy = at::empty(t.sizes(), t.options().device(at::kCPU));
  copy.copy_(t);
  return copy;
}

}  // namespace neap::bridge

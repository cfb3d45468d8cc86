#include "replay/fidelity.h"

#include "base/format.h"
#include "cache/address_map.h"
#include "replay/phase_table.h"

namespace neap::replay {
namespace {

using cache::Address;

/// Answers requests with the recorded segments, in their order.
class RecordedSource : public cache::SegmentSource {
 public:
  struct Expected {
    Address address;
    std::uint64_t size;
    bool map;
  };

  explicit RecordedSource(Bytes capacity) : capacity_(capacity.is_zero() ? 1_TiB : capacity) {}

  void expect(const Expected& segment) { queue_.push_back(segment); }
  [[nodiscard]] bool has_expected() const { return next_ < queue_.size(); }
  [[nodiscard]] const Expected& expected() const { return queue_[next_]; }
  [[nodiscard]] Expected take_expected() { return queue_[next_++]; }
  /// Forgets the segments that the last request did not use, and returns their number.
  std::size_t clear() {
    const std::size_t left = queue_.size() - next_;
    queue_.clear();
    next_ = 0;
    return left;
  }
  std::uint64_t equal = 0;
  std::uint64_t unexpected = 0;

  Result<Address> allocate(Bytes size, cache::Stream, bool) override {
    if (has_expected() && !queue_[next_].map && queue_[next_].size == size.count()) {
      ++equal;
      return take_expected().address;
    }
    ++unexpected;
    invented_ -= round_up(size, 2_MiB).count();
    return invented_;
  }
  Result<Address> reserve(Bytes size, cache::Stream, bool) override {
    if (has_expected() && queue_[next_].map) return queue_[next_].address;
    invented_ -= round_up(size, 2_MiB).count();
    return invented_;
  }
  Status map(Address at, Bytes size) override {
    if (has_expected() && queue_[next_].map && queue_[next_].address == at &&
        queue_[next_].size == size.count()) {
      ++equal;
      ++next_;
    } else {
      ++unexpected;
    }
    return ok_status();
  }
  Status free(Address, Bytes) override { return ok_status(); }
  Status unreserve(Address, Bytes) override { return ok_status(); }
  Status unmap(Address, Bytes) override { return ok_status(); }
  [[nodiscard]] Bytes capacity() const override { return capacity_; }

 private:
  Bytes capacity_;
  std::vector<Expected> queue_;
  std::size_t next_ = 0;
  Address invented_ = 1ull << 62;  ///< above all addresses that a driver returns
};

}  // namespace

struct RecordedRun::Impl {
  Impl(const Workload& w, const FidelityOptions& o)
      : workload(w), options(o), source(o.capacity), phases(w) {
    cache::CacheOptions cache_options;
    cache_options.settings = w.settings;
    cache_options.version = w.version;
    cache_options.locking = cache::LockPolicy::kNone;
    allocator.emplace(source, cache_options);
  }

  void diverge(const Op& op, std::string what, std::string reason) {
    if (result.first_divergence) return;
    result.first_divergence = Divergence{op.event, std::move(what), std::move(reason)};
  }

  [[nodiscard]] std::string reason_for(const Op& op) const {
    const Anomalies& odd = workload.anomalies;
    if (odd.allocs_never_freed > 0 || odd.frees_of_unknown > 0)
      return "events are missing from the trace (skip_actions, or a buffer that dropped some)";
    if (odd.segments_inconsistent > 0)
      return "the segments of the snapshot and the events contradict each other";
    if (!workload.starts_empty() && workload.guessed_sizes > 0)
      return "the trace is cut: sizes of blocks that were live before its first event had to be "
             "guessed";
    if (workload.device->events[op.event].kind == trace::EventKind::kSegmentMap &&
        !workload.settings.expandable_segments)
      return "the settings were changed while the program ran";
    if (workload.uses_private_pools)
      return "the pool of a segment that was freed before the snapshot is not recorded";
    if (workload.routes.size() > 1)
      return "an allocation's pool or stream is not what the trace suggests";
    return "another version or port of the allocator, or settings changed while the program ran";
  }

  void alloc(const Op& op) {
    const trace::Event& event = workload.device->events[op.event];
    const Route& route = workload.routes[op.route];
    const std::uint64_t unexpected = source.unexpected;
    auto address = allocator->malloc(Bytes(op.size), route.stream, route.pool);
    ++result.allocs;
    const bool asked = source.unexpected != unexpected;
    const std::size_t left = source.clear();
    Address got = 0;
    if (address.ok()) got = *address;
    if (got == event.address && !asked && left == 0) {
      ++result.allocs_equal;
    } else {
      result.allocs_equal += got == event.address ? 1 : 0;
      diverge(op,
              format("alloc of {} bytes was at {:#x}{}, the replay gives {:#x}{}", op.size,
                     event.address, left > 0 ? " in a new segment" : "", got,
                     asked ? " in a new segment" : ""),
              reason_for(op));
    }
    addresses[op.block] = got;
    if (got == 0) return;
    by_address.take(got);
    by_address.insert(got, op.block + 1);
  }

  void release(const Op& op) {
    const trace::Event& event = workload.device->events[op.event];
    map_leftovers(op);
    const Status released = allocator->release_range(event.address, Bytes(event.size));
    if (released.ok()) {
      ++result.segments_equal;
    } else {
      diverge(op,
              format("{} at {:#x} was released, in the replay it cannot be: {}", Bytes(event.size),
                     event.address, released.message()),
              reason_for(op));
    }
  }

  /// Maps the ranges that were mapped for a request that failed in the end.
  void map_leftovers(const Op& op) {
    while (source.has_expected()) {
      const RecordedSource::Expected segment = source.take_expected();
      if (segment.map && allocator->map_range(segment.address, Bytes(segment.size)).ok()) {
        ++result.segments_equal;
        continue;
      }
      diverge(op, format("a segment at {:#x} was taken for no allocation", segment.address),
              reason_for(op));
    }
    source.clear();
  }

  /// Sets the state before the first event.
  Status start() {
    addresses.resize(workload.blocks.size());
    Status adopted = allocator->adopt(workload.initial_segments, workload.initial_reservations);
    if (!adopted.ok())
      return std::move(adopted).with_context("rebuilding the state before the first event");
    for (std::uint32_t i = 0; i < workload.initial_blocks; ++i) {
      addresses[i] = workload.initial_addresses[i];
      by_address.insert(workload.initial_addresses[i], i + 1);
    }
    return ok_status();
  }

  void apply(const Op& op) {
    const trace::Event* event =
        op.event < workload.device->events.size() ? &workload.device->events[op.event] : nullptr;
    switch (op.kind) {
      case OpKind::kAlloc:
        alloc(op);
        break;
      case OpKind::kFree:
      case OpKind::kRequestFree:
      case OpKind::kCompleteFree: {
        const Address at = addresses[op.block];
        if (at == 0) break;
        const Status done = op.kind == OpKind::kFree          ? allocator->free(at)
                            : op.kind == OpKind::kRequestFree ? allocator->request_free(at)
                                                              : allocator->complete_free(at);
        if (!done.ok()) diverge(op, done.message(), reason_for(op));
        if (op.kind != OpKind::kRequestFree && by_address.find(at) == op.block + 1)
          by_address.take(at);
        break;
      }
      case OpKind::kSegmentAlloc:
      case OpKind::kSegmentMap:
        ++result.segments;
        source.expect({event->address, event->size, op.kind == OpKind::kSegmentMap});
        break;
      case OpKind::kSegmentFree:
      case OpKind::kSegmentUnmap:
        ++result.segments;
        release(op);
        break;
      case OpKind::kOom:
        map_leftovers(op);
        break;
      case OpKind::kPhaseBegin:
      case OpKind::kPhaseEnd:
        phases.apply(op, *allocator);
        break;
      default:
        break;
    }
  }

  const Workload& workload;
  FidelityOptions options;
  RecordedSource source;
  std::optional<cache::CachingAllocator> allocator;
  PhaseTable phases;
  std::vector<Address> addresses;
  cache::AddressMap<std::uint32_t> by_address;  ///< block number + 1
  Fidelity result;
};

RecordedRun::RecordedRun(const Workload& workload, const FidelityOptions& options)
    : impl_(std::make_unique<Impl>(workload, options)) {}
RecordedRun::~RecordedRun() = default;

const Fidelity& RecordedRun::fidelity() const {
  return impl_->result;
}
const cache::CachingAllocator& RecordedRun::allocator() const {
  return *impl_->allocator;
}
std::optional<std::uint32_t> RecordedRun::block_at(Address address) const {
  const std::uint32_t number = impl_->by_address.find(address);
  if (number == 0) return std::nullopt;
  return number - 1;
}

Status RecordedRun::run(const Observer& observer) {
  Impl& impl = *impl_;
  const Workload& workload = impl.workload;
  NEAP_TRY(impl.start());
  for (const Op& op : workload.ops) {
    if (op.event >= impl.options.stop_before_event) break;
    impl.apply(op);
    if (observer) observer(op, *impl.allocator);
  }
  impl.result.segments_equal += impl.source.equal;
  impl.result.stats = impl.phases.finish(*impl.allocator);
  impl.result.phases = impl.phases.figures();
  return ok_status();
}

Result<Fidelity> check_fidelity(const Workload& workload, const FidelityOptions& options) {
  RecordedRun run(workload, options);
  NEAP_TRY(run.run());
  return run.fidelity();
}

}  // namespace neap::replay

#include "replay/what_if.h"

#include <algorithm>
#include <mutex>

#include "base/format.h"
#include "base/parallel_for.h"

namespace neap::replay {
namespace {

using cache::Address;
using cache::CacheStats;

constexpr std::uint32_t kTransientPool = 0xfffffff0;

/// Runs one scenario on one thread.
class Run {
 public:
  Run(const Workload& workload, const Scenario& scenario, Bytes capacity, const AddressOrder& order)
      : w_(workload),
        scenario_(scenario),
        order_(order),
        source_(capacity, order, workload),
        empties_(w_.phase_names.size()) {
    cache::CacheOptions options;
    options.settings = scenario.settings;
    if (scenario.fraction > 0) options.settings.memory_fraction = scenario.fraction;
    options.version = scenario.version;
    options.locking = cache::LockPolicy::kNone;
    allocator_.emplace(source_, options);
    for (std::size_t i = 0; i < empties_.size(); ++i)
      empties_[i] = scenario.empty.after(w_.phase_names[i]);
    addresses_.resize(w_.blocks.size());
    epochs_.resize(has_pending() ? w_.blocks.size() : 0);
  }

  Result<Outcome> run() {
    NEAP_TRY(set_initial_state());
    for (const Op& op : w_.ops) {
      if (out_.oom) break;
      NEAP_TRY(apply(op));
    }
    finish();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool has_pending() const {
    return std::any_of(w_.ops.begin(), w_.ops.end(),
                       [](const Op& op) {
                         return op.kind == OpKind::kRequestFree || op.kind == OpKind::kCompleteFree;
                       }) ||
           std::any_of(w_.initial_pending.begin(), w_.initial_pending.end(),
                       [](bool pending) { return pending; });
  }

  /// Allocates the blocks that were live before the first event, by address. Their recorded
  /// positions result from missing events under the recorded settings.
  Status set_initial_state() {
    for (std::uint32_t i = 0; i < w_.initial_blocks && !out_.oom; ++i) {
      allocate(Op{w_.blocks[i].requested, i, 0, w_.blocks[i].route, OpKind::kAlloc});
      if (w_.initial_pending[i] && addresses_[i] != 0) NEAP_TRY(request_free(i));
    }
    // Earlier driver calls do not count.
    before_ = allocator_->stats();
    spent_before_ = source_.milliseconds();
    return ok_status();
  }

  void allocate(const Op& op) {
    const Route& route = w_.routes[op.route];
    std::uint32_t pool = route.pool;
    if (scenario_.phase_pools && pool == 0) {
      const BlockLife& life = w_.blocks[op.block];
      if (life.dies && life.birth_phase == life.death_phase && life.birth_phase != kNoPhase)
        pool = kTransientPool;
    }
    auto address = allocator_->malloc(Bytes(op.size), route.stream, pool);
    if (address.ok()) {
      addresses_[op.block] = *address;
      return;
    }
    OutOfMemory oom;
    oom.event = op.event;
    oom.phase = w_.phase_name(current_phase());
    if (const MemoryShortage* shortage = address.status().shortage(); shortage != nullptr) {
      oom.need = shortage->need;
      oom.free = shortage->free;
    }
    out_.oom = std::move(oom);
  }

  Status request_free(std::uint32_t block) {
    epochs_[block] = 1 + allocator_->stats().synchronizations;
    return allocator_->request_free(addresses_[block]);
  }

  /// A retry or empty_cache may have completed the free earlier than recorded.
  Status complete_free(std::uint32_t block) {
    if (epochs_[block] != 1 + allocator_->stats().synchronizations) return ok_status();
    return allocator_->complete_free(addresses_[block]);
  }

  Status empty_cache() {
    ++out_.empty_cache_calls;
    return allocator_->empty_cache();
  }

  Status apply(const Op& op) {
    switch (op.kind) {
      case OpKind::kAlloc:
        allocate(op);
        return ok_status();
      case OpKind::kFree:
        return allocator_->free(addresses_[op.block]);
      case OpKind::kRequestFree:
        return addresses_[op.block] == 0 ? ok_status() : request_free(op.block);
      case OpKind::kCompleteFree:
        return addresses_[op.block] == 0 ? ok_status() : complete_free(op.block);
      case OpKind::kRecordedEmptyCache:
        return scenario_.empty.kind == EmptyPolicy::Kind::kRecorded ? empty_cache() : ok_status();
      case OpKind::kReleasePool:
        // A pool that this scenario never used has nothing to release.
        static_cast<void>(allocator_->release_pool(op.block));
        return ok_status();
      case OpKind::kPhaseBegin:
        open_.push_back(op.block);
        return ok_status();
      case OpKind::kPhaseEnd:
        return end_phase(op);
      default:
        return ok_status();
    }
  }

  Status end_phase(const Op& op) {
    std::erase(open_, op.block);
    if (scenario_.phase_pools) {
      // A phase without temporaries has no pool to release.
      static_cast<void>(allocator_->release_pool(kTransientPool));
      return allocator_->empty_cache();
    }
    return empties_[w_.phases[op.block].name] ? empty_cache() : ok_status();
  }

  [[nodiscard]] std::uint32_t current_phase() const {
    return open_.empty() ? kNoPhase : open_.back();
  }

  void finish() {
    const CacheStats stats = allocator_->stats();
    out_.peak_reserved = stats.peak_reserved;
    out_.peak_allocated = stats.peak_allocated;
    out_.peak_requested = stats.peak_requested;
    out_.fragmentation_at_peak = stats.fragmentation_at_peak;
    out_.fragmentation_max = stats.fragmentation_max;
    out_.fragmentation_overhead =
        saturating_sub(stats.peak_reserved, stats.peak_reserved_without_fragmentation);
    out_.end_reserved = stats.reserved;
    out_.end_allocated = stats.allocated;
    out_.driver_allocs = stats.device_allocs - before_.device_allocs;
    out_.driver_frees = stats.device_frees - before_.device_frees;
    out_.retries = stats.retries - before_.retries;
    out_.driver_ms = source_.milliseconds() - spent_before_;
    out_.events = w_.allocator_events;
    out_.released_segments = source_.released_segments();
    out_.orders = {{order_, out_.peak_reserved, out_.driver_allocs, out_.oom.has_value()}};
  }

  const Workload& w_;
  const Scenario& scenario_;
  AddressOrder order_;
  OrderedSource source_;
  std::optional<cache::CachingAllocator> allocator_;
  std::vector<char> empties_;
  std::vector<Address> addresses_;
  std::vector<std::uint64_t> epochs_;  ///< synchronizations at a deferred free, + 1
  std::vector<std::uint32_t> open_;
  CacheStats before_;
  double spent_before_ = 0;
  Outcome out_;
};

template <class T, class Value>
Interval<T> interval(const std::vector<OrderFigures>& orders, Value value) {
  Interval<T> range{value(orders.front()), value(orders.front())};
  for (const OrderFigures& order : orders) {
    if (order.out_of_memory && !orders.front().out_of_memory) continue;
    range.least = std::min<T>(range.least, value(order));
    range.most = std::max<T>(range.most, value(order));
  }
  return range;
}

/// A dozen orders rarely include the extremes, so a quarter of the range is added on both sides.
constexpr std::uint64_t kMarginParts = 4;

}  // namespace

std::string to_string(const Interval<Bytes>& range) {
  std::string least = to_string(range.least);
  std::string most = to_string(range.most);
  if (least == most) return most;
  const auto unit = [](const std::string& text) { return text.substr(text.rfind(' ')); };
  if (unit(least) == unit(most)) least.resize(least.size() - unit(least).size());
  return format("{} to {}", least, most);
}

Interval<Bytes> Outcome::peak_reserved_range() const {
  auto range =
      interval<Bytes>(orders, [](const OrderFigures& order) { return order.peak_reserved; });
  const Bytes margin = (range.most - range.least) / kMarginParts;
  // Reserved memory cannot be below allocated memory.
  range.least =
      std::max(saturating_sub(range.least, margin), std::min(range.least, peak_allocated));
  range.most += margin;
  return range;
}

Interval<std::uint64_t> Outcome::driver_allocs_range() const {
  auto range = interval<std::uint64_t>(
      orders, [](const OrderFigures& order) { return order.driver_allocs; });
  const std::uint64_t margin = (range.most - range.least + kMarginParts - 1) / kMarginParts;
  range.least -= std::min(range.least, margin);
  range.most += margin;
  return range;
}

std::size_t Outcome::orders_out_of_memory() const {
  return static_cast<std::size_t>(std::count_if(
      orders.begin(), orders.end(), [](const OrderFigures& order) { return order.out_of_memory; }));
}

Result<Outcome> run_scenario(const Workload& workload, const Scenario& scenario, Bytes capacity,
                             const AddressOrder& order) {
  return Run(workload, scenario, capacity, order).run();
}

std::vector<Result<Outcome>> run_scenarios(const Workload& workload,
                                           const std::vector<Scenario>& scenarios, Bytes capacity,
                                           unsigned threads,
                                           const std::function<void(std::size_t)>& done,
                                           std::size_t orders) {
  const std::vector<AddressOrder> all = address_orders(orders);
  std::vector<Result<Outcome>> outcomes(scenarios.size(),
                                        Status(ErrorCode::kInternal, "The scenario was not run"));
  std::mutex mutex;
  std::size_t finished = 0;
  const auto finish = [&] {
    ++finished;
    if (done) done(finished);
  };
  parallel_for(scenarios.size(), threads, [&](std::size_t i) {
    outcomes[i] = run_scenario(workload, scenarios[i], capacity, all.front());
    const bool one_number = all.size() == 1 || !outcomes[i].ok() || !outcomes[i]->released_segments;
    const std::lock_guard lock(mutex);
    if (one_number) finish();
  });
  // Only scenarios that release segments depend on the address order.
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < scenarios.size(); ++i)
    if (outcomes[i].ok() && outcomes[i]->released_segments) open.push_back(i);
  const std::size_t others = all.size() - 1;
  std::vector<std::size_t> left(scenarios.size(), others);
  std::vector<std::vector<OrderFigures>> figures(scenarios.size(),
                                                 std::vector<OrderFigures>(others));
  parallel_for(open.size() * others, threads, [&](std::size_t task) {
    const std::size_t i = open[task / others];
    auto outcome = run_scenario(workload, scenarios[i], capacity, all[1 + task % others]);
    const std::lock_guard lock(mutex);
    if (outcome.ok())
      figures[i][task % others] = outcome->orders.front();
    else if (outcomes[i].ok())
      outcomes[i] = outcome.status();
    if (--left[i] > 0) return;
    if (outcomes[i].ok())
      outcomes[i]->orders.insert(outcomes[i]->orders.end(), figures[i].begin(), figures[i].end());
    finish();
  });
  return outcomes;
}

}  // namespace neap::replay

#include "replay/pool_inference.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "replay/recorded_layout.h"

namespace neap::replay {
namespace {

/// Numbers for inferred pools. Recorded numbers fit in eight bits.
constexpr std::uint32_t kFirstInferredPool = 1000;
constexpr std::uint32_t kUnknown = ~0u;

/// Assigns a pool to every node.
class PoolAssignment {
 public:
  /// First choice for an ambiguous segment.
  enum class Preference { kPreviousPool, kDefaultPool };

  PoolAssignment(const Workload& workload, const RecordedLayout& layout, Preference preference)
      : nodes_(layout.nodes()), preference_(preference), pools_(nodes_.size(), kUnknown) {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].pool) pools_[i] = *nodes_[i].pool;
    order_allocations(workload, layout);
    assign();
    for (int round = 0; round < 3; ++round) smooth();
    for (std::uint32_t& pool : pools_)
      if (pool == kUnknown) pool = 0;
  }

  [[nodiscard]] std::uint32_t pool(std::uint32_t node) const { return pools_[node]; }
  [[nodiscard]] std::uint64_t inferred() const {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) count += !nodes_[i].pool && pools_[i] != 0;
    return count;
  }

 private:
  /// The nodes of a stream's allocations in order, without repetitions.
  void order_allocations(const Workload& workload, const RecordedLayout& layout) {
    for (std::size_t i = 0; i < workload.ops.size(); ++i) {
      const std::uint32_t node = layout.node_of_op()[i];
      if (workload.ops[i].kind != OpKind::kAlloc || node == kNoNode) continue;
      auto& visits = visits_[nodes_[node].stream];
      if (visits.empty() || visits.back() != node) visits.push_back(node);
    }
  }

  [[nodiscard]] bool allowed(std::uint32_t node, std::uint32_t pool) const {
    return std::none_of(nodes_[node].conflicts.begin(), nodes_[node].conflicts.end(),
                        [&](std::uint32_t other) { return pools_[other] == pool; });
  }

  void assign() {
    for (const auto& [stream, visits] : visits_) {
      std::vector<std::uint32_t> recent = {0};  // pools of this stream, most recently used last
      for (std::size_t i = 0; i < visits.size(); ++i) {
        std::uint32_t& pool = pools_[visits[i]];
        if (pool == kUnknown) pool = choose(visits, i, recent);
        std::erase(recent, pool);
        recent.push_back(pool);
      }
    }
  }

  [[nodiscard]] std::uint32_t choose(const std::vector<std::uint32_t>& visits, std::size_t at,
                                     const std::vector<std::uint32_t>& recent) {
    const std::uint32_t node = visits[at];
    if (preference_ == Preference::kDefaultPool && allowed(node, 0)) return 0;
    if (allowed(node, recent.back())) return recent.back();
    if (allowed(node, 0)) return 0;
    for (std::size_t i = at + 1; i < visits.size(); ++i) {
      const std::uint32_t next = pools_[visits[i]];
      if (next == kUnknown) continue;
      if (allowed(node, next)) return next;
      break;
    }
    for (auto pool = recent.rbegin(); pool != recent.rend(); ++pool)
      if (allowed(node, *pool)) return *pool;
    return next_pool_++;
  }

  /// Moves segments to the pool of the allocations before and after theirs: a capture sends all
  /// allocations of its stream to one pool.
  void smooth() {
    std::vector<std::map<std::uint32_t, int>> votes(nodes_.size());
    for (const auto& [stream, visits] : visits_) {
      for (std::size_t i = 0; i < visits.size(); ++i) {
        if (i > 0) ++votes[visits[i]][pools_[visits[i - 1]]];
        if (i + 1 < visits.size()) ++votes[visits[i]][pools_[visits[i + 1]]];
      }
    }
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].pool || votes[node].empty()) continue;
      std::uint32_t& pool = pools_[node];
      int best = votes[node][pool];
      for (const auto& [candidate, count] : votes[node]) {
        if (count <= best || candidate == kUnknown || !allowed(node, candidate)) continue;
        best = count;
        pool = candidate;
      }
    }
  }

  const std::vector<SegmentNode>& nodes_;
  Preference preference_;
  std::vector<std::uint32_t> pools_;
  std::map<cache::Stream, std::vector<std::uint32_t>> visits_;
  std::uint32_t next_pool_ = kFirstInferredPool;
};

/// The part of a workload that depends on an assignment.
struct Routing {
  explicit Routing(const Workload& workload)
      : ops(workload.ops), blocks(workload.blocks), segments(workload.initial_segments) {}
  void restore(Workload& workload) const {
    workload.ops = ops;
    workload.blocks = blocks;
    workload.initial_segments = segments;
  }
  std::vector<Op> ops;
  std::vector<BlockLife> blocks;
  std::vector<cache::CachingAllocator::SegmentView> segments;
};

void route_blocks(Workload& workload, const RecordedLayout& layout,
                  const PoolAssignment& assignment) {
  const auto move_to = [&](std::uint32_t block, std::uint32_t node) {
    Route route = workload.routes[workload.blocks[block].route];
    route.pool = assignment.pool(node);
    return workload.blocks[block].route = workload.route(route);
  };
  for (std::size_t i = 0; i < workload.ops.size(); ++i) {
    Op& op = workload.ops[i];
    const std::uint32_t node = layout.node_of_op()[i];
    if (op.kind == OpKind::kAlloc && node != kNoNode) op.route = move_to(op.block, node);
  }
  using State = cache::CachingAllocator::BlockView::State;
  std::uint32_t block = 0;
  for (std::size_t i = 0; i < workload.initial_segments.size(); ++i) {
    auto& segment = workload.initial_segments[i];
    const std::uint32_t node = layout.initial_nodes()[i];
    segment.pool = assignment.pool(node);
    for (const auto& view : segment.blocks)
      if (view.state != State::kFree) move_to(block++, node);
  }
}

bool gives_back(OpKind kind) {
  return kind == OpKind::kSegmentFree || kind == OpKind::kSegmentUnmap ||
         kind == OpKind::kRecordedEmptyCache;
}

/// A private pool releases memory only after its owner was destroyed. Adds a mark for that before
/// each burst of releases with segments of private pools.
void add_pool_releases(Workload& workload, const RecordedLayout& layout,
                       const PoolAssignment& assignment) {
  std::vector<Op> ops;
  ops.reserve(workload.ops.size() + 16);
  for (std::size_t i = 0; i < workload.ops.size(); ++i) {
    const Op& op = workload.ops[i];
    if (gives_back(op.kind) && (i == 0 || !gives_back(workload.ops[i - 1].kind))) {
      std::set<std::uint32_t> pools;
      for (std::size_t j = i; j < workload.ops.size() && gives_back(workload.ops[j].kind); ++j)
        if (const std::uint32_t node = layout.node_of_op()[j]; node != kNoNode)
          pools.insert(assignment.pool(node));
      pools.erase(0);
      for (const std::uint32_t pool : pools)
        ops.push_back({0, pool, op.event, 0, OpKind::kReleasePool});
    }
    ops.push_back(op);
  }
  workload.ops = std::move(ops);
}

bool is_exact(const Fidelity& fidelity) {
  return fidelity.allocs_equal == fidelity.allocs && fidelity.segments_equal == fidelity.segments;
}

}  // namespace

Status infer_pools(Workload& workload, Bytes capacity) {
  const FidelityOptions options{.capacity = capacity};
  NEAP_TRY_ASSIGN(const Fidelity before, check_fidelity(workload, options));
  const Routing as_recorded(workload);
  const RecordedLayout layout(workload);
  std::uint64_t most = before.allocs_equal;
  std::optional<Routing> best;
  using Preference = PoolAssignment::Preference;
  for (const Preference preference : {Preference::kPreviousPool, Preference::kDefaultPool}) {
    const PoolAssignment assignment(workload, layout, preference);
    route_blocks(workload, layout, assignment);
    add_pool_releases(workload, layout, assignment);
    NEAP_TRY_ASSIGN(const Fidelity found, check_fidelity(workload, options));
    if (found.allocs_equal > most || (!best && found.allocs_equal == most)) {
      most = found.allocs_equal;
      best.emplace(workload);
      workload.inferred_segments = assignment.inferred();
    }
    as_recorded.restore(workload);
    if (best && is_exact(found)) break;
  }
  if (!best) return ok_status();
  best->restore(workload);
  if (workload.inferred_segments == 0) return ok_status();
  workload.uses_private_pools = true;
  workload.notes.push_back(format(
      "{} segments of private pools were freed before the snapshot; their pool was inferred.",
      workload.inferred_segments));
  return ok_status();
}

Result<Fidelity> reproduce(Workload& workload, const FidelityOptions& options) {
  auto fidelity = check_fidelity(workload, options);
  if (!fidelity.ok() || is_exact(*fidelity) || workload.uses_private_pools) return fidelity;
  NEAP_TRY(infer_pools(workload, options.capacity));
  return check_fidelity(workload, options);
}

}  // namespace neap::replay

// Positions of blocks at every time of the recorded run, and what they prove about pools. Private
// to replay/.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <vector>

#include "replay/workload.h"

namespace neap::replay {

inline constexpr std::uint32_t kNoNode = ~0u;

/// One segment from its allocation to its release, or one expandable reservation. It belongs to one
/// pool.
struct SegmentNode {
  cache::Address begin = 0, end = 0;  ///< covers all bytes that were ever mapped
  cache::Stream stream = 0;
  bool small_pool = false;
  bool expandable = false;
  std::optional<std::uint32_t> pool;     ///< set if the snapshot has it
  std::vector<std::uint32_t> conflicts;  ///< nodes in other pools
};

/// Follows the recorded addresses and collects conflicts.
class RecordedLayout {
 public:
  explicit RecordedLayout(const Workload& workload);

  [[nodiscard]] const std::vector<SegmentNode>& nodes() const { return nodes_; }
  /// By index of Workload::ops: the node of an allocation or segment event.
  [[nodiscard]] const std::vector<std::uint32_t>& node_of_op() const { return node_of_op_; }
  /// The node of each of Workload::initial_segments.
  [[nodiscard]] const std::vector<std::uint32_t>& initial_nodes() const { return initial_nodes_; }

 private:
  struct Piece {
    std::uint64_t size = 0;
    std::uint32_t node = 0;
    bool free = true;
  };
  using Pieces = std::map<cache::Address, Piece>;
  using FreeList = std::set<std::pair<std::uint64_t, cache::Address>>;  ///< (size, address)

  void add_initial();
  void know_final_pools();
  std::uint32_t apply(const Op& op);
  std::uint32_t allocate(const Op& op, const trace::Event& event);
  void free(cache::Address at);
  std::uint32_t add_segment(const trace::Event& event, bool expandable);
  std::uint32_t remove_segment(const trace::Event& event);
  [[nodiscard]] std::uint32_t reservation_of(const trace::Event& event) const;
  void collect_conflicts(const Piece& chosen, cache::Address at, std::uint64_t size);
  void add_conflict(std::uint32_t a, std::uint32_t b);
  [[nodiscard]] bool is_at_edge(Pieces::const_iterator piece) const;
  [[nodiscard]] bool splits(const SegmentNode& node, std::uint64_t size, std::uint64_t rest) const;
  FreeList& free_list(const SegmentNode& node) { return free_[{node.stream, node.small_pool}]; }
  Pieces::iterator insert_free(cache::Address at, std::uint64_t size, std::uint32_t node);
  void take_free(Pieces::iterator piece);

  const Workload& w_;
  std::vector<SegmentNode> nodes_;
  std::vector<std::uint32_t> node_of_op_;
  std::vector<std::uint32_t> initial_nodes_;
  Pieces pieces_;
  std::map<std::pair<cache::Stream, bool>, FreeList> free_;
  std::unordered_set<std::uint64_t> known_conflicts_;
  bool fresh_segment_ = false;  ///< a segment was allocated for the next allocation
};

}  // namespace neap::replay

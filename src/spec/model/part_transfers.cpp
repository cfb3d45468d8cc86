#include "spec/model/part_transfers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace neap::spec {
namespace {

using Range = ParameterCut::Range;

// A run of elements of the cut dimension: from `from` in the shard of `giver` to `to` in the
// receiver's shard.
struct Segment {
  std::int64_t giver = 0, from = 0, to = 0, count = 0;
};

// The ranges of a dimension of `size` that a shard has.
std::vector<Range> ranges_of(const Architecture& whole, const TensorShard& shard,
                             const Parameter& parameter, std::int64_t size) {
  const ParameterCut cut = cut_of(whole, shard, parameter);
  return cut.cuts() ? cut.ranges : std::vector<Range>{{0, size}};
}

// A missing range of the receiver, and its start in the receiver's shard.
struct Lacking {
  Range range;
  std::int64_t to = 0;
};

// Moves what the giver has from `lacking` to `out`.
void take_from(std::int64_t giver, const std::vector<Range>& ranges, std::vector<Lacking>& lacking,
               std::vector<Segment>& out) {
  std::int64_t at = 0;  // start of the range in the giver's shard
  for (const Range& range : ranges) {
    std::vector<Lacking> left;
    for (const Lacking& each : lacking) {
      const std::int64_t each_end = each.range.first + each.range.count;
      const std::int64_t begin = std::max(range.first, each.range.first);
      const std::int64_t end = std::min(range.first + range.count, each_end);
      if (begin >= end) {
        left.push_back(each);
        continue;
      }
      out.push_back(
          {giver, at + begin - range.first, each.to + begin - each.range.first, end - begin});
      if (each.range.first < begin)
        left.push_back({{each.range.first, begin - each.range.first}, each.to});
      if (end < each_end) left.push_back({{end, each_end - end}, each.to + end - each.range.first});
    }
    lacking = std::move(left);
    at += range.count;
  }
}

// The elements that rank `taker` gets of a parameter that is cut along `dimension`: from itself if
// it has it, else from the following ranks.
std::vector<Segment> segments_of(const Architecture& whole, const Parameter& parameter,
                                 std::size_t dimension, const std::vector<TensorShard>& wanted,
                                 std::int64_t taker) {
  const std::int64_t size = parameter.shape[dimension];
  const auto ranks = std::ssize(wanted);
  std::vector<Lacking> lacking;
  std::int64_t at = 0;
  for (const Range& range :
       ranges_of(whole, wanted[static_cast<std::size_t>(taker)], parameter, size)) {
    lacking.push_back({range, at});
    at += range.count;
  }
  std::vector<Segment> out;
  for (std::int64_t i = 0; i < ranks && !lacking.empty(); ++i) {
    const std::int64_t giver = (taker + i) % ranks;
    take_from(giver, ranges_of(whole, {ranks, giver}, parameter, size), lacking, out);
  }
  return out;
}

// Sender and receiver.
using Pair = std::pair<std::int64_t, std::int64_t>;

void add_boxes(const Architecture& whole, const FlatUnit& unit, std::size_t number,
               const std::vector<TensorShard>& wanted,
               std::map<Pair, std::vector<SharedBox>>& boxes) {
  const Parameter& parameter = unit.parameters[number];
  const std::int64_t rows = parameter.shape.front();
  const std::int64_t columns = parameter.shape.size() == 1 ? 1 : parameter.shape[1];
  const int dimension = cut_dimension(whole, parameter.module, parameter.part);
  for (std::int64_t taker = 0; taker < std::ssize(wanted); ++taker) {
    if (dimension < 0) {
      boxes[{taker, taker}].push_back({number, rows, columns});
      continue;
    }
    for (const Segment& s :
         segments_of(whole, parameter, static_cast<std::size_t>(dimension), wanted, taker)) {
      SharedBox box{number, rows, s.count, {0, s.from}, {0, s.to}};
      if (dimension == 0) box = {number, s.count, columns, {s.from, 0}, {s.to, 0}};
      boxes[{s.giver, taker}].push_back(box);
    }
  }
}

// Splits boxes into transfers of at most `most` elements.
std::vector<PartTransfer> pieces_of(const Pair& pair, const std::vector<SharedBox>& boxes,
                                    std::int64_t most) {
  std::vector<PartTransfer> out;
  std::int64_t left = 0;  // elements left in the last one
  for (SharedBox box : boxes) {
    while (box.rows > 0) {
      if (left < box.columns) {
        out.push_back({pair.first, pair.second});
        left = std::max(most, box.columns);
      }
      SharedBox piece = box;
      piece.rows = std::min(box.rows, left / box.columns);
      out.back().boxes.push_back(piece);
      left -= piece.elements();
      box.rows -= piece.rows;
      box.from.row += piece.rows;
      box.to.row += piece.rows;
    }
  }
  return out;
}

// Orders pairs in rounds. A rank occurs at most once in a round.
std::vector<Pair> in_rounds(const std::map<Pair, std::vector<SharedBox>>& boxes,
                            std::size_t ranks) {
  std::vector<Pair> waiting, out;
  for (const auto& [pair, unused] : boxes)
    if (pair.first != pair.second) waiting.push_back(pair);
  while (!waiting.empty()) {
    std::vector<bool> busy(ranks);
    std::vector<Pair> later;
    for (const Pair& pair : waiting) {
      const auto from = static_cast<std::size_t>(pair.first);
      const auto to = static_cast<std::size_t>(pair.second);
      const bool now = !busy[from] && !busy[to];
      (now ? out : later).push_back(pair);
      if (now) busy[from] = busy[to] = true;
    }
    waiting = std::move(later);
  }
  return out;
}

}  // namespace

std::int64_t PartTransfer::elements() const {
  std::int64_t sum = 0;
  for (const SharedBox& box : boxes) sum += box.elements();
  return sum;
}

std::vector<TensorShard> wanted_parts(std::int64_t count, std::int64_t first, std::int64_t ranks) {
  std::vector<TensorShard> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back({ranks, (first + i) % ranks});
  return out;
}

std::vector<PartTransfer> part_transfers(const Architecture& whole, const FlatUnit& unit,
                                         const std::vector<TensorShard>& wanted,
                                         std::int64_t most) {
  std::map<Pair, std::vector<SharedBox>> boxes;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) add_boxes(whole, unit, i, wanted, boxes);
  std::vector<PartTransfer> out;
  for (auto& [pair, own] : boxes)
    if (pair.first == pair.second) out.push_back({pair.first, pair.second, own});
  for (const Pair& pair : in_rounds(boxes, wanted.size()))
    for (PartTransfer& piece : pieces_of(pair, boxes.at(pair), most))
      out.push_back(std::move(piece));
  return out;
}

TransferSizes transfer_sizes(const Architecture& whole, const std::vector<FlatUnit>& units,
                             std::int64_t from, std::int64_t to, std::int64_t most) {
  TransferSizes out;
  // The pattern of shards repeats after lcm(from, to) ranks.
  for (std::int64_t first = 0; first < std::lcm(from, to); first += from) {
    std::vector<std::int64_t> busy(static_cast<std::size_t>(from));
    const std::vector<TensorShard> wanted = wanted_parts(from, first, to);
    for (const FlatUnit& unit : units) {
      for (const PartTransfer& transfer : part_transfers(whole, unit, wanted, most)) {
        if (transfer.from == transfer.to) continue;
        const std::int64_t elements = transfer.elements();
        out.largest = std::max(out.largest, elements);
        for (const std::int64_t rank : {transfer.from, transfer.to})
          busy[static_cast<std::size_t>(rank)] += elements;
      }
    }
    out.busiest = std::max(out.busiest, *std::max_element(busy.begin(), busy.end()));
  }
  return out;
}

}  // namespace neap::spec

#include "parallel/exchange.h"

#include <algorithm>
#include <utility>

namespace neap::parallel {
namespace {

// Parts begin at multiples that allow vector loads of every type.
constexpr std::int64_t kPartMultiple = 64;

}  // namespace

std::vector<std::int64_t> even_parts(std::int64_t elements, int ranks) {
  const std::int64_t each = (elements + ranks - 1) / ranks;
  const std::int64_t part = (each + kPartMultiple - 1) / kPartMultiple * kPartMultiple;
  std::vector<std::int64_t> out;
  for (int r = 0; r < ranks; ++r) {
    out.push_back(std::min(part, elements));
    elements -= out.back();
  }
  return out;
}

// A tensor's parts, divided into pieces.
struct ExchangeOrder::Pieces {
  Pieces(const std::vector<std::int64_t>& parts, std::int64_t most_elements)
      : counts(parts), most(most_elements) {
    std::int64_t at = 0;
    for (const std::int64_t n : counts) {
      firsts.push_back(at);
      at += n;
      rounds = std::max(rounds, (n + most - 1) / most);
    }
  }
  [[nodiscard]] std::int64_t first(int rank, std::int64_t piece) const {
    return firsts[static_cast<std::size_t>(rank)] + piece * most;
  }
  [[nodiscard]] std::int64_t count(int rank, std::int64_t piece) const {
    return std::clamp<std::int64_t>(counts[static_cast<std::size_t>(rank)] - piece * most, 0, most);
  }
  const std::vector<std::int64_t>& counts;
  std::int64_t most;
  std::vector<std::int64_t> firsts;
  std::int64_t rounds = 0;  // pieces of the longest part
};

ExchangeOrder::ExchangeOrder(int rank, int ranks)
    : rank_(rank),
      ranks_(ranks),
      sent_(static_cast<std::size_t>(ranks)),
      taken_(static_cast<std::size_t>(ranks)) {}

// Starts with the next rank, so that ranks do not all write to the same one.
std::vector<int> ExchangeOrder::peers() const {
  std::vector<int> out;
  for (int i = 1; i < ranks_; ++i) out.push_back((rank_ + i) % ranks_);
  return out;
}

void ExchangeOrder::add_sums(const Pieces& pieces, std::int64_t piece,
                             std::vector<ExchangeStep>& out) {
  for (const int peer : peers()) {
    if (const std::int64_t n = pieces.count(peer, piece); n > 0)
      out.push_back({ExchangeStep::Kind::kPush, peer, next_to(peer), pieces.first(peer, piece), n});
  }
  const std::int64_t n = pieces.count(rank_, piece);
  if (n == 0) return;
  const std::int64_t first = pieces.first(rank_, piece);
  // Messages of lower ranks are added up in a buffer, then this rank's values are added, then the
  // higher ranks' messages. This keeps the ascending order.
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    ExchangeStep step{ExchangeStep::Kind::kAdd, peer, next_of(peer), first, n};
    if (peer + 1 < rank_) {
      step.into = peer + 1;
      step.into_message = taken_[static_cast<std::size_t>(peer) + 1];
    }
    out.push_back(step);
  }
}

void ExchangeOrder::add_gathers(const Pieces& pieces, std::int64_t piece, bool summed,
                                std::vector<ExchangeStep>& out) {
  if (const std::int64_t n = pieces.count(rank_, piece); n > 0) {
    for (const int peer : peers()) {
      ExchangeStep step{ExchangeStep::Kind::kPush, peer, next_to(peer), pieces.first(rank_, piece),
                        n};
      step.summed = std::exchange(summed, false);
      out.push_back(step);
    }
  }
  for (const int peer : peers()) {
    if (const std::int64_t n = pieces.count(peer, piece); n > 0)
      out.push_back(
          {ExchangeStep::Kind::kStore, peer, next_of(peer), pieces.first(peer, piece), n});
  }
}

std::vector<ExchangeStep> ExchangeOrder::sum_parts(const std::vector<std::int64_t>& counts,
                                                   std::int64_t most) {
  const Pieces pieces(counts, most);
  std::vector<ExchangeStep> out;
  for (std::int64_t piece = 0; piece < pieces.rounds; ++piece) add_sums(pieces, piece, out);
  return out;
}

std::vector<ExchangeStep> ExchangeOrder::sum(const std::vector<std::int64_t>& counts,
                                             std::int64_t most) {
  const Pieces pieces(counts, most);
  std::vector<ExchangeStep> out;
  // The sum of one piece is sent while the next piece arrives.
  for (std::int64_t piece = 0; piece <= pieces.rounds; ++piece) {
    if (piece < pieces.rounds) add_sums(pieces, piece, out);
    if (piece > 0) add_gathers(pieces, piece - 1, true, out);
  }
  return out;
}

std::vector<ExchangeStep> ExchangeOrder::gather(const std::vector<std::int64_t>& counts,
                                                std::int64_t most) {
  const Pieces pieces(counts, most);
  std::vector<ExchangeStep> out;
  for (std::int64_t piece = 0; piece < pieces.rounds; ++piece)
    add_gathers(pieces, piece, false, out);
  return out;
}

}  // namespace neap::parallel

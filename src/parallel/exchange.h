// Sums and gathers between ranks that write into slots in each other's memory: who does what, in which order.
//
// Model     For each pair of a sender and a receiver the receiver has kSlots slots, which messages use in turns. A
//           sender writes a message when the one before it in that slot has been taken, a receiver reads it when it
//           has come. Pieces of a slot's size go through one after the other, so that sums, copies in and copies out
//           of different pieces run at the same time.
// Order     Every rank makes the same exchanges in the same order. Executed one after the other, too, the steps of all
//           ranks end: a step waits only for steps that have an earlier place. So it does not matter how far a rank's
//           pushes run ahead of its other steps, nor if a GPU runs them in one queue.
// Bits      An element's sum adds ranks in ascending order, whoever adds it up: that of a whole tensor has the bits of
//           that of its parts.
//
// Threads   values; an ExchangeOrder belongs to one thread.   Failure   none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::parallel {

struct ExchangeStep {
  /// kPush: elements of the tensor go to a slot of `peer`. kAdd: the message of `peer` is added to what `into` is
  /// about. kStore: the message of `peer` becomes elements of the tensor.
  enum class Kind : std::uint8_t { kPush, kAdd, kStore };
  Kind kind = Kind::kPush;
  int peer = 0;
  std::int64_t message = 0;           ///< of this sender to this receiver, from 0 on
  std::int64_t first = 0, count = 0;  ///< elements of the whole tensor
  int into = -1;  ///< kAdd: the peer whose message the sum is left in; -1: the tensor
  std::int64_t into_message = 0;
  bool summed =
      false;  ///< kPush: it and the pushes after it are of sums that the steps kAdd before it make
};

/// Elements that each of so many ranks adds up of a whole tensor.
[[nodiscard]] std::vector<std::int64_t> even_parts(std::int64_t elements, int ranks);

/// Numbers the messages of one rank's exchanges.
class ExchangeOrder {
 public:
  ExchangeOrder(int rank, int ranks);

  // Parts lie one after another, counts[r] elements of rank r; a piece has at most `most` elements.
  /// Each rank's part becomes its sum.
  [[nodiscard]] std::vector<ExchangeStep> sum_parts(const std::vector<std::int64_t>& counts,
                                                    std::int64_t most);
  /// All parts become their sums, on every rank.
  [[nodiscard]] std::vector<ExchangeStep> sum(const std::vector<std::int64_t>& counts,
                                              std::int64_t most);
  /// Every part becomes its rank's.
  [[nodiscard]] std::vector<ExchangeStep> gather(const std::vector<std::int64_t>& counts,
                                                 std::int64_t most);

 private:
  struct Pieces;
  void add_sums(const Pieces& pieces, std::int64_t piece, std::vector<ExchangeStep>& out);
  void add_gathers(const Pieces& pieces, std::int64_t piece, bool summed,
                   std::vector<ExchangeStep>& out);
  [[nodiscard]] std::vector<int> peers() const;
  [[nodiscard]] std::int64_t next_to(int peer) { return sent_[static_cast<std::size_t>(peer)]++; }
  [[nodiscard]] std::int64_t next_of(int peer) { return taken_[static_cast<std::size_t>(peer)]++; }

  int rank_, ranks_;
  std::vector<std::int64_t> sent_, taken_;  // messages to and from each rank
};

}  // namespace neap::parallel

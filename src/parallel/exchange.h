// The order of sums and gathers between ranks that write into buffers in each other's memory.
//
// Model     For each pair of a sender and a receiver, the receiver has kSlots buffers, used in
//           turn. A sender writes a message once the previous message in that buffer has been
//           consumed. A receiver reads a message once it has arrived. Tensors pass in pieces of a
//           buffer's size. So additions and copies of different pieces run at the same time.
// Order     Every rank makes the same exchanges in the same order. A step waits only for steps with
//           an earlier place, so executing each rank's steps in order cannot deadlock. Pushes may
//           run ahead of a rank's other steps, or all may share one queue.
// Bits      An element's sum adds ranks in ascending order on whichever rank it is computed. So the
//           sum of a whole tensor is bitwise equal to the sums of its parts.
//
// Threads   values; an ExchangeOrder belongs to one thread.
// Failure   none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace neap::parallel {

struct ExchangeStep {
  /// A step kPush copies elements of the tensor to a buffer of `peer`. A step kAdd adds the message
  /// of `peer` to the target of `into`. A step kStore copies the message of `peer` into the tensor.
  enum class Kind : std::uint8_t { kPush, kAdd, kStore };
  Kind kind = Kind::kPush;
  int peer = 0;
  std::int64_t message = 0;           ///< number among this sender's messages to this receiver
  std::int64_t first = 0, count = 0;  ///< elements of the whole tensor
  int into = -1;  ///< kAdd: the sum is left in this peer's message; -1: in the tensor
  std::int64_t into_message = 0;
  /// kPush: this push and later ones read sums that earlier kAdd steps produce
  bool summed = false;
};

/// Divides `elements` evenly: the elements that each rank sums.
[[nodiscard]] std::vector<std::int64_t> even_parts(std::int64_t elements, int ranks);

/// Produces the steps of one rank and numbers its messages.
class ExchangeOrder {
 public:
  ExchangeOrder(int rank, int ranks);

  // In all calls, parts are in the order of ranks with counts[r] elements each. A piece has at most
  // `most` elements.
  /// Reduce-scatter.
  [[nodiscard]] std::vector<ExchangeStep> sum_parts(const std::vector<std::int64_t>& counts,
                                                    std::int64_t most);
  /// All-reduce.
  [[nodiscard]] std::vector<ExchangeStep> sum(const std::vector<std::int64_t>& counts,
                                              std::int64_t most);
  /// All-gather.
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
  std::vector<std::int64_t> sent_, taken_;  // messages to each rank, and from each rank
};

}  // namespace neap::parallel

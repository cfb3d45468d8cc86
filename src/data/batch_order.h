// The order in which a run visits its rows, as a function of the seed and the step.
//
// Every epoch has as many rows as the files together. Without weights they are all rows, each once.
// With weights a file has its share of an epoch, rounded to rows: it goes through its own rows, again
// and again, and goes on in an epoch where it was in the one before, so that a large file with a
// small share is seen whole over several epochs.
//
// Threads   one at a time.   Failure   kInvalidArgument.
// Cost      4 bytes a row, made at the first batch of an epoch; with weights up to three times as much
//           while it is made.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace neap::data {

struct OrderOptions {
  std::size_t batch = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::vector<double> weights = {};  ///< of each file, adding up to 1; or none
};

class BatchOrder {
 public:
  /// Of files with so many rows each, numbered through. Fails when there are fewer rows than one
  /// batch, and for a file without rows that has a weight.
  [[nodiscard]] static Result<BatchOrder> make(std::vector<std::size_t> rows, OrderOptions options);

  /// The last rows of an epoch that fill no batch are left out of that epoch.
  [[nodiscard]] std::int64_t steps_per_epoch() const;
  [[nodiscard]] std::int64_t epoch_of(std::int64_t step) const { return step / steps_per_epoch(); }
  /// Row numbers of step `step`, counted from 0 over all epochs.
  [[nodiscard]] std::vector<std::size_t> batch(std::int64_t step) const;

 private:
  using Order = std::vector<std::uint32_t>;
  BatchOrder(std::vector<std::size_t> rows, OrderOptions options, std::size_t total);
  [[nodiscard]] Order order_of(std::uint64_t epoch) const;
  [[nodiscard]] Order weighted_rows(std::uint64_t epoch) const;
  void shuffle(Order& order, std::uint64_t key) const;

  std::vector<std::size_t> rows_;
  OrderOptions options_;
  std::size_t total_;
  std::vector<std::size_t> shares_;  ///< rows of each file in an epoch; empty without weights
  mutable std::int64_t cached_epoch_ = -1;
  mutable Order order_;
};

}  // namespace neap::data

// The order in which a run visits its rows, as a function of the seed and the step.
//
// An epoch has as many rows as all files together. Without weights it visits each row once. With
// weights each file gets its share of an epoch, rounded to rows. The file repeats its rows as often
// as needed. Each epoch continues where the previous one stopped, so a large file with a small
// share is visited completely over several epochs.
//
// Threads   one at a time.
//
// Failure   kInvalidArgument.
//
// Cost      4 bytes per row, allocated at the first batch of an epoch; with weights up to three
//           times as much while it is built.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace neap::data {

struct OrderOptions {
  std::size_t batch = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::vector<double> weights = {};  ///< weight of each file, with sum 1; or empty
};

class BatchOrder {
 public:
  /// `rows` has the number of rows of each file. Fails if the files have fewer rows than one batch,
  /// and for an empty file with a weight.
  [[nodiscard]] static Result<BatchOrder> make(std::vector<std::size_t> rows, OrderOptions options);

  /// The last rows of an epoch that do not fill a batch are skipped in that epoch.
  [[nodiscard]] std::int64_t steps_per_epoch() const;
  [[nodiscard]] std::int64_t epoch_of(std::int64_t step) const { return step / steps_per_epoch(); }
  /// Row numbers of step `step`. Steps count from 0 over all epochs.
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
  std::vector<std::size_t> shares_;  ///< rows of each file per epoch; empty without weights
  mutable std::int64_t cached_epoch_ = -1;
  mutable Order order_;
};

}  // namespace neap::data

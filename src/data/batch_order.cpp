#include "data/batch_order.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "base/random.h"

namespace neap::data {
namespace {

constexpr std::uint64_t kOrderStream = 0x6f72646572ULL, kFileStream = 0x66696c65ULL;

// Divides `total` rows by weight: rounds down, then adds one row each by the largest remainder.
// Every file gets at least one row.
std::vector<std::size_t> divide(std::size_t total, const std::vector<double>& weights) {
  std::vector<std::size_t> shares;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] * static_cast<double>(total);
    shares.push_back(std::max<std::size_t>(static_cast<std::size_t>(exact), 1));
    remainders.emplace_back(static_cast<double>(shares.back()) - exact, i);
  }
  std::sort(remainders.begin(), remainders.end());
  std::size_t sum = std::accumulate(shares.begin(), shares.end(), std::size_t{0});
  for (std::size_t i = 0; sum < total; ++i, ++sum) ++shares[remainders[i % shares.size()].second];
  while (sum > total) {
    --*std::max_element(shares.begin(), shares.end());
    --sum;
  }
  return shares;
}

}  // namespace

Result<BatchOrder> BatchOrder::make(std::vector<std::size_t> rows, OrderOptions options) {
  const std::size_t total = std::accumulate(rows.begin(), rows.end(), std::size_t{0});
  if (options.batch == 0 || total < options.batch) {
    return Status(ErrorCode::kInvalidArgument,
                  format("The training files have {} rows, fewer than data.train_batch_size {}",
                         total, options.batch));
  }
  if (total > UINT32_MAX)
    return Status(ErrorCode::kInvalidArgument,
                  format("The training files have {} rows; the most is {}", total, UINT32_MAX));
  if (options.weights.empty()) return BatchOrder(std::move(rows), std::move(options), total);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] > 0) continue;
    return Status(ErrorCode::kInvalidArgument,
                  format("Number {} of data.train_files has no rows, but a weight", i + 1));
  }
  return BatchOrder(std::move(rows), std::move(options), total);
}

BatchOrder::BatchOrder(std::vector<std::size_t> rows, OrderOptions options, std::size_t total)
    : rows_(std::move(rows)), options_(std::move(options)), total_(total) {
  if (!options_.weights.empty()) shares_ = divide(total_, options_.weights);
}

std::int64_t BatchOrder::steps_per_epoch() const {
  return static_cast<std::int64_t>(total_ / options_.batch);
}

void BatchOrder::shuffle(Order& order, std::uint64_t key) const {
  if (!options_.shuffle) return;
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    // The modulo's bias is below 2^-32 for the largest possible number of rows.
    std::swap(order[i], order[mix(key + i) % (i + 1)]);
  }
}

BatchOrder::Order BatchOrder::weighted_rows(std::uint64_t epoch) const {
  // Without shuffling, rows of all files are spread evenly: row k of s has position (k + 1/2) / s.
  std::vector<Order> picks(rows_.size());
  std::uint32_t first = 0;
  for (std::size_t f = 0; f < rows_.size(); ++f) {
    const std::uint64_t begin = epoch * shares_[f];
    Order order(rows_[f]);
    std::uint64_t made = UINT64_MAX;
    for (std::uint64_t at = begin; at < begin + shares_[f]; ++at) {
      const std::uint64_t pass = at / rows_[f];
      if (pass != made) {
        std::iota(order.begin(), order.end(), first);
        shuffle(order, random_key({options_.seed, kFileStream, f, pass}));
        made = pass;
      }
      picks[f].push_back(order[at % rows_[f]]);
    }
    first += static_cast<std::uint32_t>(rows_[f]);
  }
  Order out;
  out.reserve(total_);
  std::vector<std::size_t> taken(rows_.size(), 0);
  while (out.size() < total_) {
    std::size_t next = 0;
    double least = 2;
    for (std::size_t f = 0; f < rows_.size(); ++f) {
      const double place = (static_cast<double>(taken[f]) + 0.5) / static_cast<double>(shares_[f]);
      if (taken[f] < shares_[f] && place < least) {
        next = f;
        least = place;
      }
    }
    out.push_back(picks[next][taken[next]++]);
  }
  return out;
}

BatchOrder::Order BatchOrder::order_of(std::uint64_t epoch) const {
  Order order;
  if (shares_.empty()) {
    order.resize(total_);
    std::iota(order.begin(), order.end(), std::uint32_t{0});
  } else {
    order = weighted_rows(epoch);
  }
  shuffle(order, random_key({options_.seed, kOrderStream, epoch}));
  return order;
}

std::vector<std::size_t> BatchOrder::batch(std::int64_t step) const {
  const std::int64_t epoch = epoch_of(step);
  if (epoch != cached_epoch_) {
    order_ = order_of(static_cast<std::uint64_t>(epoch));
    cached_epoch_ = epoch;
  }
  const auto first = static_cast<std::ptrdiff_t>(
      static_cast<std::size_t>(step % steps_per_epoch()) * options_.batch);
  return {order_.begin() + first,
          order_.begin() + first + static_cast<std::ptrdiff_t>(options_.batch)};
}

}  // namespace neap::data

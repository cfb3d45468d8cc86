#include "parallel/row_deal.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>

#include "bridge/runtime.h"

namespace neap::parallel {
namespace {

using Rows = std::vector<std::int64_t>;

// One rank's rows of a mini-batch.
struct Share {
  std::int64_t tokens = 0;
  Rows rows;
};

std::vector<Share> shares_of(const Rows& lengths, std::int64_t first, std::int64_t count,
                             std::int64_t ranks) {
  const auto length = [&](std::int64_t row) { return lengths[static_cast<std::size_t>(row)]; };
  Rows order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
  std::vector<Share> shares(static_cast<std::size_t>(ranks));
  const auto has_place = [&](const Share& s) { return std::ssize(s.rows) < count / ranks; };
  for (const std::int64_t row : order) {
    const auto least =
        std::min_element(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
          if (has_place(a) != has_place(b)) return has_place(a);
          return a.tokens < b.tokens;
        });
    least->tokens += length(row);
    least->rows.push_back(row);
  }
  for (Share& share : shares) std::sort(share.rows.begin(), share.rows.end());
  return shares;
}

// The place of each row in a list; -1 if the list does not have it.
Rows places_in(const Rows& list, std::size_t rows) {
  Rows out(rows, -1);
  for (std::size_t i = 0; i < list.size(); ++i)
    out[static_cast<std::size_t>(list[i])] = static_cast<std::int64_t>(i);
  return out;
}

// Packs rows of host tensors into messages; only the first elements of each row are sent.
class RowParts {
 public:
  RowParts(const Rows& counts, const at::Tensor& rows)
      : counts_(counts),
        element_(static_cast<std::size_t>(rows.element_size())),
        width_(static_cast<std::size_t>(rows.size(1)) * element_) {}
  [[nodiscard]] std::byte* at(const at::Tensor& rows, std::int64_t place) const {
    return static_cast<std::byte*>(rows.mutable_data_ptr()) +
           static_cast<std::size_t>(place) * width_;
  }
  [[nodiscard]] std::size_t bytes(std::int64_t row) const {
    return static_cast<std::size_t>(counts_[static_cast<std::size_t>(row)]) * element_;
  }
  /// An empty message for these rows.
  [[nodiscard]] at::Tensor message(const Rows& rows) const {
    std::size_t size = 0;
    for (const std::int64_t row : rows) size += bytes(row);
    return at::empty({static_cast<std::int64_t>(size)}, at::dtype(at::kByte));
  }

 private:
  const Rows& counts_;
  std::size_t element_, width_;
};

}  // namespace

RowLists balanced_rows(const Rows& lengths, std::int64_t mini_batch, std::int64_t ranks) {
  RowLists out(static_cast<std::size_t>(ranks));
  Rows tokens(out.size());  // of each rank so far
  for (std::int64_t first = 0; first < std::ssize(lengths); first += mini_batch) {
    std::vector<Share> shares = shares_of(lengths, first, mini_batch, ranks);
    std::stable_sort(shares.begin(), shares.end(),
                     [](const Share& a, const Share& b) { return a.tokens > b.tokens; });
    std::vector<std::size_t> by_tokens(out.size());
    std::iota(by_tokens.begin(), by_tokens.end(), std::size_t{0});
    std::stable_sort(by_tokens.begin(), by_tokens.end(),
                     [&](std::size_t a, std::size_t b) { return tokens[a] < tokens[b]; });
    for (std::size_t i = 0; i < shares.size(); ++i) {
      Rows& rows = out[by_tokens[i]];
      rows.insert(rows.end(), shares[i].rows.begin(), shares[i].rows.end());
      tokens[by_tokens[i]] += shares[i].tokens;
    }
  }
  return out;
}

RowLists rows_in_turns(std::int64_t rows, std::int64_t block, std::int64_t ranks) {
  RowLists out(static_cast<std::size_t>(ranks));
  for (std::int64_t row = 0; row < rows; ++row)
    out[static_cast<std::size_t>(row / block % ranks)].push_back(row);
  return out;
}

Rows tokens_of(const RowLists& lists, const Rows& lengths) {
  Rows out;
  for (const Rows& rows : lists) {
    std::int64_t& sum = out.emplace_back(0);
    for (const std::int64_t row : rows) sum += lengths[static_cast<std::size_t>(row)];
  }
  return out;
}

RowDeal::RowDeal(Communicator& ranks, RowLists lists) : ranks_(ranks), lists_(std::move(lists)) {
  const bridge::HostScope host;
  Rows all;
  for (const Rows& rows : lists_) all.insert(all.end(), rows.begin(), rows.end());
  mine_ = at::tensor(lists_[static_cast<std::size_t>(ranks.rank())], at::kLong);
  all_ = at::tensor(all, at::kLong);
}

at::Tensor RowDeal::pick(const at::Tensor& batch) const {
  if (!batch.defined() || ranks_.alone()) return batch;
  const bridge::HostScope host;
  return batch.index_select(0, mine_);
}

at::Tensor RowDeal::gather(const at::Tensor& mine) const {
  if (!mine.defined() || ranks_.alone()) return mine;
  const bridge::HostScope host;
  const at::Tensor flat = mine.contiguous();
  std::vector<std::int64_t> shape = flat.sizes().vec();
  shape[0] *= ranks_.size();
  const at::Tensor by_rank = at::empty(shape, flat.options());
  ranks_.all_gather(by_rank, flat);
  return at::empty_like(by_rank).index_copy_(0, all_, by_rank);
}

at::Tensor RowDeal::gather(const at::Tensor& mine, const Rows& counts, std::int64_t fill) const {
  if (!mine.defined() || ranks_.alone()) return mine;
  const bridge::HostScope host;
  const at::Tensor rows = mine.contiguous();
  const auto element = static_cast<std::size_t>(rows.element_size());
  const auto width = static_cast<std::size_t>(rows.size(1)) * element;
  const auto bytes_of = [&](std::int64_t row) {
    return static_cast<std::size_t>(counts[static_cast<std::size_t>(row)]) * element;
  };
  const Rows sent = tokens_of(lists_, counts);
  const auto rank = static_cast<std::size_t>(ranks_.rank());
  const at::Tensor flat =
      at::empty({std::accumulate(sent.begin(), sent.end(), std::int64_t{0})}, rows.options());
  const auto first_of = [&](std::size_t r) {
    const auto before = std::accumulate(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(r),
                                        std::int64_t{0});
    return static_cast<std::byte*>(flat.mutable_data_ptr()) +
           static_cast<std::size_t>(before) * element;
  };
  std::byte* to = first_of(rank);
  const auto* from = static_cast<const std::byte*>(rows.const_data_ptr());
  for (const std::int64_t row : lists_[rank]) {
    std::memcpy(to, from, bytes_of(row));
    to += bytes_of(row);
    from += width;
  }
  ranks_.all_gather(flat, sent);
  const at::Tensor out = at::full({std::ssize(counts), rows.size(1)}, fill, rows.options());
  const std::byte* next = first_of(0);
  for (const Rows& list : lists_) {
    for (const std::int64_t row : list) {
      std::memcpy(
          static_cast<std::byte*>(out.mutable_data_ptr()) + static_cast<std::size_t>(row) * width,
          next, bytes_of(row));
      next += bytes_of(row);
    }
  }
  return out;
}

at::Tensor RowDeal::send(const at::Tensor& mine, const RowDeal& to, const Rows& counts,
                         std::int64_t fill) const {
  if (!mine.defined() || lists_ == to.lists_) return mine;
  const bridge::HostScope host;
  const at::Tensor rows = mine.contiguous();
  const RowParts parts(counts, rows);
  const at::Tensor out = at::full({std::ssize(to.own()), rows.size(1)}, fill, rows.options());
  const Rows from_place = places_in(own(), counts.size());
  const Rows to_place = places_in(to.own(), counts.size());
  const auto place = [](const Rows& places, std::int64_t row) {
    return places[static_cast<std::size_t>(row)];
  };
  for (const std::int64_t row : own())
    if (const std::int64_t at = place(to_place, row); at >= 0)
      std::memcpy(parts.at(out, at), parts.at(rows, place(from_place, row)), parts.bytes(row));
  // Both ends take the rows of a pair in the sender's order.
  const auto send_to = [&](int rank) {
    const Rows theirs = places_in(to.lists_[static_cast<std::size_t>(rank)], counts.size());
    Rows sent;
    for (const std::int64_t row : own())
      if (place(theirs, row) >= 0) sent.push_back(row);
    const at::Tensor message = parts.message(sent);
    auto* next = static_cast<std::byte*>(message.mutable_data_ptr());
    for (const std::int64_t row : sent) {
      std::memcpy(next, parts.at(rows, place(from_place, row)), parts.bytes(row));
      next += parts.bytes(row);
    }
    if (message.numel() > 0) ranks_.send(message, rank);
  };
  const auto receive_from = [&](int rank) {
    Rows received;
    for (const std::int64_t row : lists_[static_cast<std::size_t>(rank)])
      if (place(to_place, row) >= 0) received.push_back(row);
    const at::Tensor message = parts.message(received);
    if (message.numel() > 0) ranks_.receive(message, rank);
    const auto* next = static_cast<const std::byte*>(message.const_data_ptr());
    for (const std::int64_t row : received) {
      std::memcpy(parts.at(out, place(to_place, row)), next, parts.bytes(row));
      next += parts.bytes(row);
    }
  };
  // All ranks go through all pairs in the same order, so that they cannot deadlock.
  for (int first = 0; first < ranks_.size(); ++first) {
    for (int second = first + 1; second < ranks_.size(); ++second) {
      if (ranks_.rank() == first) {
        send_to(second);
        receive_from(second);
      } else if (ranks_.rank() == second) {
        receive_from(first);
        send_to(first);
      }
    }
  }
  return out;
}

}  // namespace neap::parallel

#include "train/packed_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/runtime.h"

namespace neap::train {
namespace {

using Rows = std::vector<std::int64_t>;

using Places = std::vector<std::int32_t>;

at::Tensor tensor_of(const Rows& values) {
  return at::tensor(values, at::kLong);
}
// The tensor takes ownership of the vector.
at::Tensor tensor_of(Places&& values) {
  auto* const kept = new Places(std::move(values));
  return at::from_blob(
      kept->data(), {std::ssize(*kept)}, [kept](void*) { delete kept; }, at::dtype(at::kInt));
}
Rows values_of(const at::Tensor& t) {
  const at::Tensor flat = t.contiguous();
  const auto* from = flat.const_data_ptr<std::int64_t>();
  return {from, from + flat.numel()};
}

// The grouping of rows, and the order of the batch's sequences and rows.
struct Arrangement {
  step::Cuts cuts;
  Rows order, row_order;
};

// Groups rows, given their numbers of tokens.
std::vector<Rows> groups_of(const Rows& tokens, const spec::Batching& batching,
                            const step::PackingLimits& limits) {
  if (batching.tokens > 0) return step::pack_rows(tokens, limits, batching.sequences_of_row);
  std::vector<Rows> out;
  for (std::int64_t row = 0; row < std::ssize(tokens); ++row) {
    if (row % batching.rows == 0) out.emplace_back();
    out.back().push_back(row);
  }
  return out;
}

Arrangement arrangement_of(const Sequences& batch, const spec::Batching& batching, Use use,
                           std::int64_t mini_batches) {
  const std::int64_t of_row = batching.sequences_of_row;
  const std::int64_t rows = batch.size() / of_row;
  const step::SequenceLimits lengths{batch.width(), batch.mask.size(1), of_row};
  const auto limits = step::PackingLimits::of(batching.tokens, batching.most_rows, lengths);
  const Rows all = values_of(batch.lengths.view({of_row, rows}).sum(0));
  Rows sizes = all;
  if (use == Use::kTraining && of_row == 1) {
    const Rows trained = values_of(batch.mask.gt(0).any(-1).to(at::kLong));
    for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] *= trained[i];
  }
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  if (batching.tokens > 0 && largest != sizes.end() && *largest > limits.tokens)
    throw Error(ErrorCode::kInternal,
                format("A row of {} tokens is over the budget of {}", *largest, limits.tokens));
  Arrangement out;
  std::int64_t placed = 0;
  const std::int64_t each = rows / mini_batches;
  for (std::int64_t m = 0; m < mini_batches; ++m) {
    std::vector<step::MicroBatch>& cuts = out.cuts.emplace_back();
    Rows own(sizes.begin() + m * each, sizes.begin() + (m + 1) * each);
    // Every mini-batch needs a micro-batch, so that metrics have the same names on every rank.
    if (each > 0 && std::all_of(own.begin(), own.end(), [](std::int64_t n) { return n == 0; }))
      own.front() = all[static_cast<std::size_t>(m * each)];
    for (const Rows& together : groups_of(own, batching, limits)) {
      for (const std::int64_t row : together) out.row_order.push_back(m * each + row);
      for (std::int64_t part = 0; part < of_row; ++part)
        for (const std::int64_t row : together) out.order.push_back(part * rows + m * each + row);
      cuts.push_back({placed, std::ssize(together), 0});
      placed += std::ssize(together);
    }
  }
  return out;
}

// Concatenates sequences of a batch, or this rank's tokens of them.
class Packer {
 public:
  Packer(const Sequences& batch, const spec::ContextShard& shard)
      : shard_(shard),
        tokens_(batch.tokens.contiguous()),
        columns_(batch.columns.contiguous()),
        targets_(batch.targets.contiguous()),
        mask_(batch.mask.gt(0).contiguous()),
        last_(batch.last.contiguous()),
        lengths_(values_of(batch.lengths)),
        width_(batch.width()),
        response_(batch.mask.size(1)) {
    std::int64_t tokens = 0;
    for (const std::int64_t length : lengths_) tokens += spec::rows_of_each(length, shard.ranks);
    for (Places* places : {&out_tokens_, &positions_})
      places->reserve(static_cast<std::size_t>(tokens));
  }

  void begin_micro_batch() {
    first_row_ = std::ssize(out_tokens_);
    place_ = number_ = 0;
  }
  void add(std::int64_t sequence) {
    const std::int64_t start = std::ssize(out_tokens_) - first_row_;
    const auto* tokens = tokens_.const_data_ptr<std::int32_t>() + sequence * width_;
    const std::int64_t length = lengths_[static_cast<std::size_t>(sequence)];
    own_ = spec::own_tokens(length, shard_);
    for (const spec::TokenRange& range : own_) {
      for (std::int64_t i = range.first; i < range.end(); ++i) {
        out_tokens_.push_back(tokens[i]);
        positions_.push_back(static_cast<std::int32_t>(i));
      }
    }
    // Pads to the number of rows of the rank with the most.
    const std::int64_t end = first_row_ + start + spec::rows_of_each(length, shard_.ranks);
    out_tokens_.resize(static_cast<std::size_t>(end));
    positions_.resize(static_cast<std::size_t>(end));
    const std::int64_t at = sequence * response_;
    for (std::int64_t i = at; i < at + response_; ++i, ++place_) {
      if (!mask_.const_data_ptr<bool>()[i]) continue;
      const std::int64_t row = own_row(columns_.const_data_ptr<std::int32_t>()[i]);
      if (row < 0) continue;
      rows_.push_back(static_cast<std::int32_t>(start + row));
      out_targets_.push_back(targets_.const_data_ptr<std::int32_t>()[i]);
      places_.push_back(static_cast<std::int32_t>(place_));
    }
    if (const std::int64_t row = own_row(last_.const_data_ptr<std::int64_t>()[sequence]);
        row >= 0) {
      out_last_.push_back(start + row);
      last_places_.push_back(number_);
    }
    ++number_;
    lengths_of_.push_back(length);
    starts_.push_back(std::ssize(out_tokens_));
    counts_.push_back(std::ssize(rows_));
    last_counts_.push_back(std::ssize(out_last_));
  }

  [[nodiscard]] step::Packed<at::Tensor> take(step::Cuts cuts) {
    step::Packed<at::Tensor> out{tensor_of(std::move(out_tokens_)),
                                 tensor_of(std::move(positions_)),
                                 tensor_of(std::move(rows_)),
                                 tensor_of(std::move(out_targets_)),
                                 tensor_of(std::move(places_)),
                                 tensor_of(out_last_),
                                 std::move(lengths_of_),
                                 std::move(starts_),
                                 std::move(counts_),
                                 std::move(cuts)};
    out.width = width_;
    if (shard_.ranks == 1) return out;
    out.context = shard_;
    out.last_places = tensor_of(last_places_);
    out.last_counts = std::move(last_counts_);
    return out;
  }

 private:
  // A token's row among this rank's rows of its sequence; -1: another rank has it.
  [[nodiscard]] std::int64_t own_row(std::int64_t token) const {
    std::int64_t before = 0;
    for (const spec::TokenRange& range : own_) {
      if (token >= range.first && token < range.end()) return before + token - range.first;
      before += range.count;
    }
    return -1;
  }

  spec::ContextShard shard_;
  std::array<spec::TokenRange, 2> own_;  // of the sequence that is being added
  at::Tensor tokens_, columns_, targets_, mask_, last_;
  Rows lengths_;
  std::int64_t width_, response_;
  // place_ and number_ count within the micro-batch
  std::int64_t first_row_ = 0, place_ = 0, number_ = 0;
  Places out_tokens_, positions_, rows_, out_targets_, places_;
  Rows out_last_, last_places_, lengths_of_;
  Rows starts_ = {0}, counts_ = {0}, last_counts_ = {0};
};

}  // namespace

at::Tensor ArrangedBatch::arranged(const at::Tensor& by_sequence) const {
  return order.defined() ? by_sequence.index_select(0, order) : by_sequence;
}
at::Tensor ArrangedBatch::arranged_rows(const at::Tensor& by_row) const {
  return row_order.defined() ? by_row.index_select(0, row_order) : by_row;
}
at::Tensor ArrangedBatch::restored(const at::Tensor& by_sequence) const {
  if (!order.defined() || !by_sequence.defined()) return by_sequence;
  return at::empty_like(by_sequence).index_copy_(0, order, by_sequence);
}

ArrangedBatch arrange(Sequences batch, const spec::Batching& batching, Use use,
                      std::int64_t mini_batches, const spec::ContextShard& shard) {
  if (batching.tokens == 0 && batching.sequences_of_row == 1) return {std::move(batch), {}, {}};
  const bridge::HostScope host;
  Arrangement arrangement = arrangement_of(batch, batching, use, mini_batches);
  ArrangedBatch out;
  out.order = tensor_of(arrangement.order);
  out.row_order = tensor_of(arrangement.row_order);
  for (at::Tensor Sequences::*t : {&Sequences::mask, &Sequences::last, &Sequences::lengths})
    out.sequences.*t = out.arranged(batch.*t);
  if (batching.tokens == 0) {
    for (at::Tensor Sequences::*t : {&Sequences::tokens, &Sequences::columns, &Sequences::targets})
      out.sequences.*t = out.arranged(batch.*t);
    return out;
  }
  Packer packer(batch, shard);
  auto next = arrangement.order.begin();
  for (const std::vector<step::MicroBatch>& cuts : arrangement.cuts) {
    for (const step::MicroBatch& micro : cuts) {
      packer.begin_micro_batch();
      for (std::int64_t i = 0; i < micro.count * batching.sequences_of_row; ++i)
        packer.add(*next++);
    }
  }
  out.sequences.packed = packer.take(std::move(arrangement.cuts));
  return out;
}

}  // namespace neap::train

// The rows of hidden states that a head reads, and the input of its matrix.
//
// Hidden states are (N, C) rows, of which R are read.
#pragma once

#include <algorithm>
#include <utility>

#include "step/model/block_parts.h"

namespace neap::step {

template <class T>
struct SavedHeadInput {
  T input;  // (N, C): input of the norm
  NormStatistics<T> norm;
  T normed;  // (N, C): input of the projection; undefined without one
};

template <class Ops, class T = typename Ops::Tensor>
T head_input(Ops& ops, const Weights<T>& w, T x, SavedHeadInput<T>* saved) {
  if (w.architecture.final_norm) {
    if (saved != nullptr) saved->input = x;
    x = norm(ops, w.architecture, w.final_norm, x, saved != nullptr ? &saved->norm : nullptr);
  }
  if (!w.project_out.defined()) return x;
  if (saved != nullptr) saved->normed = x;
  return linear(ops, w.project_out, x);
}

template <class Ops, class T = typename Ops::Tensor>
T head_input_backward(Ops& ops, const Weights<T>& w, SavedHeadInput<T>& saved, T d) {
  if (w.project_out.defined()) {
    d = linear_backward(ops, w.project_out, saved.normed, d);
    saved.normed = T();
  }
  if (!w.architecture.final_norm) return d;
  return norm_backward(ops, w.architecture, w.final_norm, std::move(saved.input),
                       std::exchange(saved.norm, {}), d);
}

/// Visits the rows that a head reads, one chunk at a time: those in `rows` (R,) int64 of hidden (N,
/// C), which are distinct; all rows if it is undefined.
template <class Ops>
class HeadRows {
  using T = typename Ops::Tensor;

 public:
  HeadRows(Ops& ops, const T& hidden, const T& rows, std::int64_t chunk_elements,
           std::int64_t width)
      : ops_(ops),
        hidden_(hidden),
        rows_(rows),
        count_(rows.defined() ? rows.size(0) : hidden.size(0)),
        step_(std::max<std::int64_t>(1, chunk_elements / width)) {}

  [[nodiscard]] std::int64_t count() const { return count_; }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::int64_t first = 0; first < count_; first += step_)
      visit(first, std::min(step_, count_ - first));
  }
  [[nodiscard]] T hidden(std::int64_t first, std::int64_t n) const {
    return rows_.defined() ? ops_.take_rows(hidden_, ops_.narrow(rows_, 0, first, n))
                           : ops_.narrow(hidden_, 0, first, n);
  }
  /// d_hidden = d at the chunk's rows.
  void put(const T& d_hidden, std::int64_t first, std::int64_t n, const T& d) const {
    if (rows_.defined()) {
      ops_.put_rows_(d_hidden, ops_.narrow(rows_, 0, first, n), d);
    } else {
      ops_.copy_(ops_.narrow(d_hidden, 0, first, n), d);
    }
  }

 private:
  Ops& ops_;
  const T& hidden_;
  const T& rows_;
  std::int64_t count_;
  std::int64_t step_;
};

}  // namespace neap::step

// The terms that losses return, and the sums that metrics read.
//
// A loss returns terms: values of tokens or sequences, and their weights. KeptNumbers sums them on
// the device. The sums are copied to the host once per mini-batch, because a read waits for all
// earlier work.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spec/types/mesh.h"

namespace neap::step {

/// sum(values * weights), or sum(values) if there are no weights. The tensors must not change
/// before the sum is computed.
template <class T>
struct WeighedValues {
  T values, weights{};        // of one shape
  bool over_context = false;  ///< the values are a part of those of the context-parallel group
};
/// A sum that is computed later, once for all copies of the pointer.
template <class T>
using LossTerm = std::shared_ptr<const WeighedValues<T>>;

/// A constant plus quotients of sums.
template <class Sum>
struct Quotients {
  struct Term {
    Sum sum;
    double factor = 1, divisor = 1;
    std::optional<Sum> count{};  ///< the sum is divided by it
  };
  double constant = 0;
  std::vector<Term> terms{};

  Quotients() = default;
  Quotients(Sum sum, double factor = 1, double divisor = 1) {
    terms.push_back({std::move(sum), factor, divisor, std::nullopt});
  }
  [[nodiscard]] static Quotients fixed(double value) {
    Quotients out;
    out.constant = value;
    return out;
  }
  /// The mean is 0 if `count` is 0.
  [[nodiscard]] static Quotients mean(Sum sum, Sum count) {
    Quotients out(std::move(sum));
    out.terms.front().count = std::move(count);
    return out;
  }

  /// read(x): the value of a sum.
  template <class Read>
  [[nodiscard]] double value(const Read& read) const {
    double out = constant;
    for (const Term& t : terms)
      out += t.factor * read(t.sum) / ((t.count ? read(*t.count) + 1e-8 : 1) * t.divisor);
    return out;
  }
  /// The same value with place(x) for each sum x.
  template <class Place>
  [[nodiscard]] auto placed(const Place& place) const {
    using Y = decltype(place(terms.front().sum));
    Quotients<Y> out = Quotients<Y>::fixed(constant);
    for (const Term& t : terms) {
      std::optional<Y> count;
      const Y sum = place(t.sum);
      if (t.count) count = place(*t.count);
      out.terms.push_back({sum, t.factor, t.divisor, count});
    }
    return out;
  }

  friend Quotients operator-(Quotients a) {
    a.constant = -a.constant;
    for (Term& t : a.terms) t.factor = -t.factor;
    return a;
  }
  friend Quotients operator+(Quotients a, const Quotients& b) {
    a.constant += b.constant;
    a.terms.insert(a.terms.end(), b.terms.begin(), b.terms.end());
    return a;
  }
  friend Quotients operator-(Quotients a, const Quotients& b) { return std::move(a) + -b; }
  friend Quotients operator-(double a, Quotients b) { return fixed(a) - b; }
  friend Quotients operator/(Quotients a, double by) {
    a.constant /= by;
    for (Term& t : a.terms) t.divisor *= by;
    return a;
  }
};
/// A loss, or a number for the metrics.
template <class T>
using LossValue = Quotients<LossTerm<T>>;

/// sum(values * weights).
template <class T>
LossTerm<T> weighed(T values, T weights, bool over_context = false) {
  return std::make_shared<const WeighedValues<T>>(
      WeighedValues<T>{std::move(values), std::move(weights), over_context});
}
/// sum(values).
template <class T>
LossTerm<T> summed(T values) {
  return std::make_shared<const WeighedValues<T>>(WeighedValues<T>{std::move(values)});
}

/// A mask of tokens (B, T), 1 or 0, and their number, which is computed once for all copies.
template <class T>
struct LossMask {
  LossMask(T mask) : tokens(std::move(mask)), count(summed(tokens)) {}
  T tokens;
  LossTerm<T> count;
  /// The mean of x (B, T) over these tokens.
  [[nodiscard]] LossValue<T> mean(T x) const {
    return LossValue<T>::mean(weighed(std::move(x), tokens), count);
  }
};

/// A number of a micro-batch: an addend of the mini-batch's number, or a mean over `weight` elements.
template <class Sum>
struct NamedQuotients {
  std::string name;
  Quotients<Sum> value;
  std::optional<Quotients<Sum>> weight{};
};
template <class T>
using LossSum = NamedQuotients<LossTerm<T>>;
template <class T>
using LossSums = std::vector<LossSum<T>>;

/// A LossSum on the host.
struct LossNumber {
  std::string name;
  double value = 0;
  std::optional<double> weight{};
};
using LossNumbers = std::vector<LossNumber>;

/// The sum of a term over all ranks that have values of it: ().
template <class Ops, class T = typename Ops::Tensor>
T reduce(Ops& ops, const WeighedValues<T>& term) {
  const T sum =
      ops.sum(term.weights.defined() ? ops.multiply(term.values, term.weights) : term.values);
  if (term.over_context) ops.sum_over_(sum, spec::Axis::kContext);
  return sum;
}

/// Numbers of a micro-batch while they are copied to the host.
template <class T>
class KeptNumbers {
 public:
  KeptNumbers() = default;
  template <class Ops>
  KeptNumbers(Ops& ops, const LossSums<T>& numbers) {
    std::vector<T> sums;
    std::map<LossTerm<T>, std::size_t> places;
    const auto place = [&](const LossTerm<T>& term) {
      const auto [at, added] = places.try_emplace(term, sums.size());
      if (added) sums.push_back(reduce(ops, *term));
      return at->second;
    };
    for (const LossSum<T>& n : numbers) {
      NamedQuotients<std::size_t>& kept = numbers_.emplace_back();
      kept.name = n.name;
      kept.value = n.value.placed(place);
      if (n.weight) kept.weight = n.weight->placed(place);
    }
    if (sums.empty()) return;
    const T all = ops.empty({std::ssize(sums)}, ops.dtype(sums.front()));
    for (std::size_t i = 0; i < sums.size(); ++i)
      ops.copy_(ops.narrow(all, 0, static_cast<std::int64_t>(i), 1), sums[i]);
    sums_ = ops.to_host_later(all);
  }

  /// Call it after the device has finished the work before it.
  template <class Ops>
  [[nodiscard]] LossNumbers read(Ops& ops) const {
    std::vector<double> sums;
    if (sums_.defined()) sums = ops.read_all(sums_);
    const auto sum = [&](std::size_t place) { return sums[place]; };
    LossNumbers out;
    for (const NamedQuotients<std::size_t>& n : numbers_) {
      out.push_back({n.name, n.value.value(sum), {}});
      if (n.weight) out.back().weight = n.weight->value(sum);
    }
    return out;
  }

 private:
  std::vector<NamedQuotients<std::size_t>> numbers_;
  T sums_;  // (sums,), on the host
};

/// The values, after the device has finished.
template <class Ops, class T = typename Ops::Tensor>
std::vector<double> read_values(Ops& ops, const std::vector<LossValue<T>>& values) {
  LossSums<T> numbers;
  for (const LossValue<T>& value : values) numbers.push_back({"", value});
  const KeptNumbers<T> kept(ops, numbers);
  ops.wait_for_device();
  std::vector<double> out;
  for (const LossNumber& number : kept.read(ops)) out.push_back(number.value);
  return out;
}

}  // namespace neap::step

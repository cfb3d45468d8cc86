// Numbers of losses for the metrics. They stay on the device until the mini-batch ends, because a read
// waits for all earlier work.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace neap::step {

/// A constant plus quotients of sums. X is the sum: a tensor (), or its index among the kept ones.
template <class X>
struct LossValue {
  struct Term {
    X sum;
    double factor = 1, divisor = 1;
    std::optional<X> count{};  ///< the sum is divided by it
  };
  double constant = 0;
  std::vector<Term> terms{};

  LossValue() = default;
  LossValue(X sum, double factor = 1, double divisor = 1) {
    terms.push_back({std::move(sum), factor, divisor, std::nullopt});
  }
  [[nodiscard]] static LossValue fixed(double value) {
    LossValue out;
    out.constant = value;
    return out;
  }
  /// The mean is 0 if `count` is 0.
  [[nodiscard]] static LossValue mean(X sum, X count) {
    LossValue out(std::move(sum));
    out.terms.front().count = std::move(count);
    return out;
  }

  /// read(x): the value of a sum.
  template <class Read>
  [[nodiscard]] double value(const Read& read) const {
    double out = constant;
    for (const Term& t : terms)
      out += t.factor * read(t.sum) / (t.count ? read(*t.count) + 1e-8 : t.divisor);
    return out;
  }
  /// The same value with place(x) for each sum x.
  template <class Place>
  [[nodiscard]] auto placed(const Place& place) const {
    using Y = decltype(place(terms.front().sum));
    LossValue<Y> out = LossValue<Y>::fixed(constant);
    for (const Term& t : terms) {
      std::optional<Y> count;
      const Y sum = place(t.sum);
      if (t.count) count = place(*t.count);
      out.terms.push_back({sum, t.factor, t.divisor, count});
    }
    return out;
  }

  friend LossValue operator-(LossValue a) {
    a.constant = -a.constant;
    for (Term& t : a.terms) t.factor = -t.factor;
    return a;
  }
  friend LossValue operator+(LossValue a, const LossValue& b) {
    a.constant += b.constant;
    a.terms.insert(a.terms.end(), b.terms.begin(), b.terms.end());
    return a;
  }
  friend LossValue operator-(LossValue a, const LossValue& b) { return std::move(a) + -b; }
  friend LossValue operator-(double a, LossValue b) { return fixed(a) - b; }
  friend LossValue operator/(LossValue a, double by) {
    a.constant /= by;
    for (Term& t : a.terms) t.divisor *= by;
    return a;
  }
};

/// A number of a micro-batch: an addend of the mini-batch's number, or a mean over `weight` elements.
template <class X>
struct LossSum {
  std::string name;
  LossValue<X> value;
  std::optional<LossValue<X>> weight{};
};
template <class X>
using LossSums = std::vector<LossSum<X>>;

/// A LossSum on the host.
struct LossNumber {
  std::string name;
  double value = 0;
  std::optional<double> weight{};
};
using LossNumbers = std::vector<LossNumber>;

/// Numbers of a micro-batch while they are copied to the host.
template <class T>
class KeptNumbers {
 public:
  KeptNumbers() = default;
  template <class Ops>
  KeptNumbers(Ops& ops, const LossSums<T>& numbers) {
    std::vector<T> sums;
    const auto place = [&sums](const T& sum) {
      sums.push_back(sum);
      return sums.size() - 1;
    };
    for (const LossSum<T>& n : numbers) {
      LossSum<std::size_t>& kept = numbers_.emplace_back();
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
    for (const LossSum<std::size_t>& n : numbers_) {
      out.push_back({n.name, n.value.value(sum), {}});
      if (n.weight) out.back().weight = n.weight->value(sum);
    }
    return out;
  }

 private:
  LossSums<std::size_t> numbers_;
  T sums_;  // (sums,), on the host
};

}  // namespace neap::step

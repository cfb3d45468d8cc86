#include "reward/evaluation.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::reward {
namespace {

bool all_have_accuracy(std::span<const Outcome> outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(),
                     [](const Outcome& o) { return o.accuracy.has_value(); });
}

bool any_has_answer(std::span<const Outcome> outcomes) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [](const Outcome& o) { return o.answer.has_value(); });
}

// Scores of the responses to one prompt.
struct Spread {
  double mean = 0, deviation = 0, best = 0, worst = 0;
};

Spread spread_of(std::span<const Outcome> responses) {
  const auto count = static_cast<double>(responses.size());
  Spread out{0, 0, responses[0].score, responses[0].score};
  for (const Outcome& o : responses) {
    out.mean += o.score / count;
    out.best = std::max(out.best, o.score);
    out.worst = std::min(out.worst, o.score);
  }
  for (const Outcome& o : responses)
    out.deviation += (o.score - out.mean) * (o.score - out.mean) / count;
  out.deviation = std::sqrt(out.deviation);
  return out;
}

std::int64_t right_of(std::span<const Outcome> responses) {
  return std::count_if(responses.begin(), responses.end(),
                       [](const Outcome& o) { return o.accuracy.value_or(0) >= 1; });
}

double mean_accuracy(std::span<const Outcome> responses) {
  double sum = 0;
  for (const Outcome& o : responses) sum += o.accuracy.value_or(0);
  return sum / static_cast<double>(responses.size());
}

}  // namespace

double pass_at_k(std::int64_t n, std::int64_t right, std::int64_t k) {
  // Computes C(n - c, k) / C(n, k) as a product of k factors below 1, which cannot overflow.
  double none = 1;
  for (std::int64_t i = 0; i < k; ++i)
    none *= std::max(0.0, static_cast<double>(n - right - i)) / static_cast<double>(n - i);
  return 1 - none;
}

std::vector<std::int64_t> pass_counts(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t k = 1; k < n; k *= 2) out.push_back(k);
  out.push_back(n);
  return out;
}

double majority_accuracy(std::span<const Outcome> responses) {
  struct Votes {
    const Outcome* first;
    std::int64_t count;
  };
  std::vector<Votes> all;
  for (const Outcome& o : responses) {
    if (!o.answer) continue;
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const Votes& v) { return v.first->answer == o.answer; });
    if (same == all.end()) {
      all.push_back({&o, 1});
    } else {
      ++same->count;
    }
  }
  const auto most = std::max_element(
      all.begin(), all.end(), [](const Votes& a, const Votes& b) { return a.count < b.count; });
  return most == all.end() ? 0 : most->first->accuracy.value_or(0);
}

Figures evaluation_figures(std::span<const Outcome> outcomes, std::int64_t n) {
  Figures out;
  if (outcomes.empty()) return out;
  const auto size = static_cast<std::size_t>(n);
  const std::size_t prompts = outcomes.size() / size;
  const auto add = [&](const std::string& name, const auto& value_of_prompt) {
    double sum = 0;
    for (std::size_t i = 0; i < prompts; ++i)
      sum += value_of_prompt(outcomes.subspan(i * size, size));
    out.emplace_back(name, sum / static_cast<double>(prompts));
  };
  using Responses = std::span<const Outcome>;
  if (all_have_accuracy(outcomes)) {
    add(format("acc/mean@{}", n), mean_accuracy);
    if (n > 1) {
      for (const std::int64_t k : pass_counts(n))
        add(format("acc/pass@{}", k), [&](Responses r) { return pass_at_k(n, right_of(r), k); });
      if (any_has_answer(outcomes)) add(format("acc/maj@{}/mean", n), majority_accuracy);
    }
  }
  add(format("reward/mean@{}", n), [](Responses r) { return spread_of(r).mean; });
  if (n == 1) return out;
  add(format("reward/std@{}", n), [](Responses r) { return spread_of(r).deviation; });
  add(format("reward/best@{}/mean", n), [](Responses r) { return spread_of(r).best; });
  add(format("reward/worst@{}/mean", n), [](Responses r) { return spread_of(r).worst; });
  return out;
}

std::string source_metric(const std::string& source, const std::string& figure, bool has_accuracy) {
  const std::size_t slash = figure.find('/');
  const bool main = figure.substr(0, slash) == (has_accuracy ? "acc" : "reward");
  const std::string rest = figure.substr(slash + 1);
  const bool compared = rest.starts_with("mean@") || rest.starts_with("maj@") ||
                        rest.starts_with("best@") || rest.starts_with("pass@");
  return format("{}/{}/{}", main && compared ? "val-core" : "val-aux", source, figure);
}

}  // namespace neap::reward

// Neap's kernels that draw tokens, on a card, against the intervals of the uniform numbers in float64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "bridge/no_autograd.h"
#include "gpu/loaded_cuda.h"
#include "ops/aten_ops.h"
#include "step/generation/sampling.h"

namespace neap::ops {
namespace {

using at::Tensor;
using step::TokenDraw;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const float kBelowOne = std::nextafterf(1, 0);

struct Setting {
  const char* name;
  TokenDraw by;
};
const Setting kInVocabulary[] = {{"plain", {}},
                                 {"temperature", {.shape = {0, 0.7}}},
                                 {"cold", {.shape = {0, 1e-6}}},
                                 {"cap", {.shape = {30, 1.3}}}};
const Setting kInOrder[] = {{"top_k 1", {.top_k = 1}},
                            {"top_k 50", {.shape = {0, 0.8}, .top_k = 50}},
                            {"top_p 0.95", {.top_p = 0.95}},
                            {"top_p 0.3", {.shape = {30, 1.5}, .top_p = 0.3}},
                            {"min_p", {.min_p = 0.05}},
                            {"top_k, top_p", {.top_k = 40, .top_p = 0.9}},
                            {"all", {.top_k = 300, .top_p = 0.8, .min_p = 0.001}}};

// The tokens that a row may give.
struct Row {
  // The uniform numbers that draw a token; low == high: none.
  std::vector<double> low, high;
  std::vector<double> log_probs;

  Row(const Tensor& logits, const TokenDraw& by) {
    const Tensor wide = logits.to(at::kCPU, at::kDouble).contiguous();
    const std::vector<double> raw(wide.const_data_ptr<double>(),
                                  wide.const_data_ptr<double>() + wide.numel());
    const std::size_t n = raw.size();
    std::vector<double> z(n), mass(n);
    const double cap = by.shape.softcap;
    for (std::size_t i = 0; i < n; ++i)
      z[i] = (cap > 0 ? cap * std::tanh(raw[i] / cap) : raw[i]) / by.shape.divisor;
    const double top = *std::ranges::max_element(z);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += mass[i] = std::exp(z[i] - top);
    for (std::size_t i = 0; i < n; ++i) log_probs.push_back(z[i] - top - std::log(sum));
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (by.in_order()) {
      std::ranges::stable_sort(order,
                               [&](std::size_t a, std::size_t b) { return raw[a] > raw[b]; });
      keep(order, mass, by);
    }
    place(order, mass);
  }

 private:
  // Leaves the kept ones.
  static void keep(std::vector<std::size_t>& order, const std::vector<double>& mass,
                   const TokenDraw& by) {
    if (by.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(by.top_k)));
    while (by.min_p > 0 && mass[order.back()] < by.min_p) order.pop_back();
    if (by.top_p >= 1) return;
    double all = 0, before = 0;
    for (const std::size_t i : order) all += mass[i];
    std::size_t kept = 0;
    for (; kept < order.size() && (kept == 0 || before < by.top_p * all); ++kept)
      before += mass[order[kept]];
    order.resize(kept);
  }
  void place(const std::vector<std::size_t>& order, const std::vector<double>& mass) {
    double all = 0, before = 0;
    for (const std::size_t i : order) all += mass[i];
    low.assign(mass.size(), 0);
    high.assign(mass.size(), 0);
    for (const std::size_t i : order) {
      low[i] = before / all;
      before += mass[i];
      high[i] = before / all;
    }
  }
};

class OwnSampling : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(11);
  }
  [[nodiscard]] static Tensor on_card(const Tensor& t) { return t.to(at::Device(at::kCUDA, 0)); }
  [[nodiscard]] Tensor row(std::int64_t columns, double spread, double mean = 0) const {
    return at::randn({columns}, at::kDouble).mul_(spread).add_(mean).to(GetParam());
  }
  // n numbers at equal distances, and the ends of their range.
  [[nodiscard]] static Tensor uniforms(std::int64_t n) {
    return at::cat(
        {at::arange(n, at::kDouble).add_(0.5).div_(static_cast<double>(n)).to(at::kFloat),
         at::tensor({0.0F, kBelowOne})});
  }
  struct Drawn {
    Tensor tokens, log_probs;
  };
  // logits (V,): each number's token of the same row; (n, V): each row's.
  [[nodiscard]] Drawn draw(const Tensor& logits, const Tensor& u, const TokenDraw& by) const {
    const Tensor here = on_card(logits);
    const Tensor rows = logits.dim() == 1 ? here.expand({u.numel(), logits.numel()}) : here;
    const auto out = step::draw_tokens(own_, rows, by, /*log_probs=*/true, on_card(u));
    return {out.tokens.cpu(), out.log_probs.cpu()};
  }
  void check(const Tensor& logits, const Setting& setting, std::int64_t count = 500) const {
    const Row expected(logits, setting.by);
    const Tensor u = uniforms(count);
    const Drawn drawn = draw(logits, u, setting.by);
    const double eps = 4e-6;  // sums in float32
    const double largest = logits.to(at::kDouble).abs().max().item<double>();
    const double log_eps = 2e-5 + 1e-6 * largest / setting.by.shape.divisor;
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < u.numel(); ++i) {
      const double x = u[i].item<float>();
      const auto token = static_cast<std::size_t>(drawn.tokens[i].item<std::int64_t>());
      ASSERT_LT(token, expected.low.size());
      const bool right = expected.low[token] < expected.high[token] &&
                         x >= expected.low[token] - eps && x < expected.high[token] + eps;
      const double log_prob = drawn.log_probs[i].item<float>();
      const bool log_right = std::abs(log_prob - expected.log_probs[token]) <= log_eps;
      if (right && log_right) continue;
      ++wrong;
      if (wrong > 3) continue;
      ADD_FAILURE() << setting.name << ", " << logits.numel() << " logits, " << x << ": token "
                    << token << " is for " << expected.low[token] << " to " << expected.high[token]
                    << ", log p " << log_prob << " for " << expected.log_probs[token];
    }
    EXPECT_EQ(wrong, 0) << setting.name << ", " << logits.numel() << " logits";
  }
  [[nodiscard]] std::vector<Setting> settings() const {
    std::vector<Setting> out(std::begin(kInVocabulary), std::end(kInVocabulary));
    if (GetParam() == at::kBFloat16)
      out.insert(out.end(), std::begin(kInOrder), std::end(kInOrder));
    return out;
  }

  mutable AtenOps own_{at::Device(at::kCUDA, 0), {.own = {true}}};
  const bridge::NoAutograd no_autograd_{};
};
INSTANTIATE_TEST_SUITE_P(Types, OwnSampling, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& i) { return std::string(c10::toString(i.param)); });

TEST_P(OwnSampling, DrawsTheTokenOfTheUniformNumber) {
  for (const Setting& setting : settings()) {
    for (const std::int64_t columns : {1, 7, 129, 1000, 8192, 8193, 50257, 151936}) {
      check(row(columns, 3), setting, columns > 8193 ? 100 : 300);
      check(row(columns, 0.1, -9), setting, 50);  // several windows of values
    }
    check(row(50257, 0.02), setting, 50);
    check(at::zeros({20000}, GetParam()), setting);
    check(at::arange(40000, at::kDouble).remainder(7).to(GetParam()), setting);
  }
}

TEST_P(OwnSampling, DrawsEachTokenAsOftenAsItsProbability) {
  constexpr std::int64_t kCount = 1 << 20;
  const Tensor logits = row(1000, 2);
  for (const Setting& setting : settings()) {
    const Row expected(logits, setting.by);
    const Tensor u = at::rand({kCount}, at::kFloat);
    const Tensor counts = at::bincount(draw(logits, u, setting.by).tokens, {}, logits.numel());
    double chi_square = 0;
    std::int64_t degrees = -1;
    for (std::int64_t i = 0; i < logits.numel(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double wanted = (expected.high[at] - expected.low[at]) * kCount;
      const auto drawn = static_cast<double>(counts[i].item<std::int64_t>());
      if (wanted == 0) {
        EXPECT_EQ(drawn, 0) << setting.name;
      } else if (wanted > 5) {
        chi_square += (drawn - wanted) * (drawn - wanted) / wanted;
        ++degrees;
      }
    }
    const auto d = static_cast<double>(degrees);
    EXPECT_LT(chi_square, d + 5 * std::sqrt(2 * d) + 10) << setting.name;
  }
}

// The reference on the CPU draws by the same intervals.
TEST_P(OwnSampling, IsWhatTheOperationsDraw) {
  AtenOps reference(at::kCPU);
  const Tensor u = uniforms(200);
  for (const Setting& setting : settings()) {
    if (setting.by.shape.softcap > 0) continue;
    step::SamplingOptions options;
    options.temperature = setting.by.shape.divisor;
    options.top_k = setting.by.top_k > 0 ? setting.by.top_k : -1;
    options.top_p = setting.by.top_p;
    options.min_p = setting.by.min_p;
    const Tensor logits = row(3000, 2);
    const Tensor wide = logits.to(at::kDouble).expand({u.numel(), 3000}).contiguous();
    const auto expected = step::sample(reference, wide, options, {u, {}, {}});
    const Drawn drawn = draw(logits, u, setting.by);
    if (std::string(setting.name) == "min_p") continue;  // another order
    const std::int64_t other = drawn.tokens.ne(expected.tokens).sum().item<std::int64_t>();
    EXPECT_LE(other, 1) << setting.name;
  }
}

TEST_P(OwnSampling, TakesTheFirstOfTheLargest) {
  const TokenDraw largest{.largest = true};
  for (const std::int64_t columns : {1, 9, 1000, 50257, 151936}) {
    const Tensor logits = at::randn({5, columns}, at::kDouble).mul_(0.3).to(GetParam());
    const Drawn drawn = draw(logits, at::zeros({5}, at::kFloat), largest);
    const Tensor wide = logits.to(at::kDouble);
    const Tensor top = wide.amax(-1, true);
    for (std::int64_t i = 0; i < 5; ++i) {
      const Tensor places = wide[i].eq(top[i]).nonzero();
      EXPECT_EQ(drawn.tokens[i].item<std::int64_t>(), places[0].item<std::int64_t>());
    }
    const Tensor log_probs = top.view(-1) - wide.logsumexp(-1);
    EXPECT_LT((drawn.log_probs.to(at::kDouble) - log_probs).abs().max().item<double>(), 2e-5);
    const auto without =
        step::draw_tokens(own_, on_card(logits), largest, /*log_probs=*/false, Tensor());
    EXPECT_TRUE(at::equal(without.tokens.cpu(), drawn.tokens));
  }
}

TEST_P(OwnSampling, OfARowDoesNotDependOnTheOthers) {
  for (const Setting& setting : settings()) {
    for (const std::int64_t columns : {4096, 50257, 151936}) {
      const Tensor logits = at::randn({64, columns}, at::kDouble).mul_(2).to(GetParam());
      const Tensor u = at::rand({64}, at::kFloat);
      const Drawn all = draw(logits, u, setting.by);
      const auto same = [&](const Drawn& some, std::int64_t first) {
        const std::int64_t n = some.tokens.size(0);
        EXPECT_TRUE(at::equal(some.tokens, all.tokens.narrow(0, first, n))) << setting.name;
        EXPECT_TRUE(at::equal(some.log_probs, all.log_probs.narrow(0, first, n))) << setting.name;
      };
      same(draw(logits, u, setting.by), 0);
      same(draw(logits.narrow(0, 17, 1), u.narrow(0, 17, 1), setting.by), 17);
      same(draw(logits.narrow(0, 30, 8), u.narrow(0, 30, 8), setting.by), 30);
      // Rows that lie apart, at odd addresses.
      const Tensor wider = at::zeros({64, columns + 3}, logits.options());
      wider.narrow(1, 1, columns).copy_(logits);
      const auto out = step::draw_tokens(own_, on_card(wider).narrow(1, 1, columns), setting.by,
                                         /*log_probs=*/true, on_card(u));
      same({out.tokens.cpu(), out.log_probs.cpu()}, 0);
    }
  }
}

TEST_P(OwnSampling, OfExtremes) {
  constexpr std::int64_t kColumns = 20011;
  const Tensor u = uniforms(20);
  const auto filled = [&](double x) { return at::full({kColumns}, x, GetParam()); };
  for (const Setting& setting : settings()) {
    const auto within = [&](const Tensor& logits) {
      Drawn drawn = draw(logits, u, setting.by);
      EXPECT_TRUE(at::all(drawn.tokens.ge(0)).item<bool>()) << setting.name;
      EXPECT_TRUE(at::all(drawn.tokens.lt(kColumns)).item<bool>()) << setting.name;
      return drawn;
    };
    // A cap makes infinite logits finite.
    const bool capped = setting.by.shape.softcap > 0;
    const Tensor one = filled(-kInfinity);
    one[12345] = -7;
    const Drawn only = within(one);
    if (!capped) {
      EXPECT_TRUE(at::all(only.tokens.eq(12345)).item<bool>()) << setting.name;
      EXPECT_TRUE(at::all(only.log_probs.eq(0)).item<bool>()) << setting.name;
    }
    within(filled(-kInfinity));
    const Drawn of_nan = within(filled(std::nan("")));
    EXPECT_TRUE(at::all(of_nan.tokens.eq(0)).item<bool>()) << setting.name;
    EXPECT_TRUE(at::all(of_nan.log_probs.isnan()).item<bool>()) << setting.name;
    const Tensor with_nan = row(kColumns, 2);
    with_nan[9000] = std::nan("");
    const Drawn drawn = within(with_nan);
    EXPECT_FALSE(at::any(drawn.tokens.eq(9000)).item<bool>()) << setting.name;
    EXPECT_TRUE(at::all(drawn.log_probs.isnan()).item<bool>()) << setting.name;
    if (capped) continue;
    const Tensor infinite = row(kColumns, 2);
    infinite[77] = kInfinity;
    EXPECT_TRUE(at::all(within(infinite).tokens.eq(77)).item<bool>()) << setting.name;
  }
}

// Microseconds of both, with what the program takes to start kernels.
TEST(SamplingTimes, DISABLED_BeforeAndAfter) {
  if (!has_cuda()) GTEST_SKIP() << "no card here";
  const bridge::NoAutograd no_autograd;
  AtenOps own(at::Device(at::kCUDA, 0), {.own = {true}});
  struct Case {
    const char* name;
    step::SamplingOptions options;
    TokenDraw by;
  };
  const Case cases[] = {
      {"greedy", {.temperature = 0, .log_probs = true}, {.largest = true}},
      {"plain", {.log_probs = true}, {}},
      {"top_p 0.95", {.top_p = 0.95, .log_probs = true}, {.top_p = 0.95}},
      {"top_k 50", {.top_k = 50, .log_probs = true}, {.top_k = 50}},
  };
  for (const std::int64_t rows : {1, 8, 64, 256}) {
    const auto made = at::device(at::Device(at::kCUDA, 0));
    const Tensor logits =
        at::randn({rows, 151936}, made.dtype(at::kFloat)).mul_(3).to(at::kBFloat16);
    const Tensor u = at::rand({rows}, made.dtype(at::kFloat));
    for (const Case& c : cases) {
      const auto time = [&](const auto& work) {
        constexpr int kTimes = 100;
        for (int i = 0; i < 5; ++i) work();
        (void)own.to_host(u);
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kTimes; ++i) work();
        (void)own.to_host(u);
        const std::chrono::duration<double, std::micro> taken =
            std::chrono::steady_clock::now() - start;
        return taken.count() / kTimes;
      };
      const double before = time([&] {
        (void)step::sample(own, own.convert(logits, step::Dtype::kFloat32), c.options, {u, {}, {}});
      });
      const double after = time([&] { (void)step::draw_tokens(own, logits, c.by, true, u); });
      std::printf(R"({"rows": %lld, "sampling": "%s", "before_us": %.1f, "after_us": %.1f})"
                  "\n",
                  static_cast<long long>(rows), c.name, before, after);
    }
  }
}

}  // namespace
}  // namespace neap::ops

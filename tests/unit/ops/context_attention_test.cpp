// Attention of sequences that ranks divide, each rank a thread, against that of whole sequences in float64.
// NEAP_TEST_DEVICE=cuda: on a GPU by its kernels, too.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"
#include "bridge/torch_cuda.h"
#include "ops/aten_ops.h"
#include "parallel/communicator.h"
#include "step/attention/context_calls.h"
#include "step/attention/ring_attention.h"

namespace neap::ops {
namespace {

using at::Tensor;
using step::AttentionKernel;

constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kWidth = 8;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What threads show each other.
struct Table {
  explicit Table(int ranks) : tensors(static_cast<std::size_t>(ranks)), all(ranks) {}
  std::vector<Tensor> tensors;
  std::barrier<> all;
};

class ThreadRanks final : public parallel::Communicator {
 public:
  ThreadRanks(Table& table, int rank, int size) : Communicator(rank, size), table_(table) {}
  [[nodiscard]] std::string name() const override { return "threads"; }
  void abort(int /*exit_code*/) noexcept override {}

 private:
  // use() while every rank's tensor is there.
  template <class Use>
  void show(const Tensor& t, const Use& use) {
    table_.tensors[static_cast<std::size_t>(rank())] = t;
    table_.all.arrive_and_wait();
    use();
    table_.all.arrive_and_wait();
  }
  void do_all_gather(const Tensor& t, const Counts& counts) override {
    show(t, [&] {
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const std::int64_t first = first_of(counts, r), n = counts[static_cast<std::size_t>(r)];
        t.narrow(0, first, n)
            .copy_(table_.tensors[static_cast<std::size_t>(r)].narrow(0, first, n));
      }
    });
  }
  void do_reduce_scatter(const Tensor& t, const Counts& counts) override {
    const std::int64_t first = first_of(counts, rank());
    const std::int64_t n = counts[static_cast<std::size_t>(rank())];
    Tensor sum = at::zeros({n}, t.options());
    show(t, [&] {
      for (const Tensor& other : table_.tensors) sum += other.narrow(0, first, n);
    });
    t.narrow(0, first, n).copy_(sum);
  }
  std::int64_t do_begin_shift(const Tensor& mine, const Tensor& theirs) override {
    show(mine, [&] { theirs.copy_(table_.tensors[static_cast<std::size_t>(rank_before())]); });
    return 0;
  }
  void do_all_reduce(const Tensor&, parallel::Reduce) override { FAIL(); }
  void do_broadcast(const Tensor&, int) override { FAIL(); }
  void do_send(const Tensor&, int) override { FAIL(); }
  void do_receive(const Tensor&, int) override { FAIL(); }
  void do_barrier() override { FAIL(); }
  std::unique_ptr<Communicator> do_split(int, int, int) override { return nullptr; }

  Table& table_;
};

// A kernel of ranges on the host, as FlashAttention's is on a GPU.
class RangesOps : public AtenOps {
 public:
  using AtenOps::AtenOps;
  [[nodiscard]] static Tensor starts_of(const std::vector<std::int64_t>& lengths) {
    std::vector<std::int32_t> starts = {0};
    for (const std::int64_t n : lengths) starts.push_back(starts.back() + static_cast<int>(n));
    return at::tensor(starts, at::kInt);
  }
  static step::AttentionContext<Tensor> attention_of_ranges(
      const step::Heads<Tensor>& heads, const step::PackedRanges<Tensor>& ranges,
      const step::ScoreOptions& options) {
    const std::int64_t n = heads.q.size(0);
    step::AttentionContext<Tensor> out;
    out.out = at::full({n, kHeads, kWidth}, 1e9, heads.q.options());
    out.log_sum = at::full({kHeads, n}, 1e9, heads.q.options());
    for_each_range(heads, ranges, [&](const Range& r) {
      const Tensor scores = r.scores(options.scale);
      const Tensor sums = r.m == 0 ? at::full({kHeads, r.n}, -kInfinity, scores.options())
                                   : at::logsumexp(scores, -1);
      const Tensor weights = scores.sub(sums.unsqueeze(2)).exp_().nan_to_num_(0);
      out.out.narrow(0, r.row, r.n).copy_(at::matmul(weights, r.v).transpose(0, 1));
      out.log_sum.narrow(1, r.row, r.n).copy_(sums);
    });
    out.out = out.out.view({n, -1});
    return out;
  }
  static step::Heads<Tensor> attention_of_ranges_backward(step::AttentionContext<Tensor> saved,
                                                          const step::PackedRanges<Tensor>& ranges,
                                                          const Tensor& d_out) {
    const step::Heads<Tensor>& x = saved.heads;
    step::Heads<Tensor> d{at::zeros_like(x.q), at::zeros_like(x.k), at::zeros_like(x.v)};
    const auto by_head = [&](const Tensor& t, const Range& r) {
      return t.view({-1, kHeads, kWidth}).narrow(0, r.row, r.n).transpose(0, 1);
    };
    const auto of_keys = [](const Tensor& t) {  // (H, m, D) -> (m, K, D)
      return t.view({kKeyHeads, kHeads / kKeyHeads, t.size(1), kWidth}).sum(1).transpose(0, 1);
    };
    for_each_range(x, ranges, [&](const Range& r) {
      const Tensor sums = saved.log_sum.narrow(1, r.row, r.n).unsqueeze(2);
      const Tensor weights = r.scores(saved.options.scale).sub(sums).exp_().nan_to_num_(0);
      const Tensor dy = by_head(d_out, r);
      const Tensor product = (dy * by_head(saved.out, r)).sum(-1, true);
      const Tensor d_scores =
          weights * (at::matmul(dy, r.v.transpose(1, 2)) - product) * saved.options.scale;
      d.q.narrow(0, r.row, r.n).copy_(at::matmul(d_scores, r.k).transpose(0, 1));
      d.k.narrow(0, r.key, r.m).copy_(of_keys(at::matmul(d_scores.transpose(1, 2), r.q)));
      d.v.narrow(0, r.key, r.m).copy_(of_keys(at::matmul(weights.transpose(1, 2), dy)));
    });
    return d;
  }

 private:
  struct Range {
    std::int64_t row, n, key, m;
    bool causal;
    Tensor q, k, v;  // (H, n, D), (H, m, D)
    [[nodiscard]] Tensor scores(double scale) const {
      Tensor s = at::matmul(q, k.transpose(1, 2)) * scale;
      if (!causal) return s;
      const Tensor seen = at::ones({n, m}, at::kBool).tril_(m - n);
      return s.masked_fill(seen.logical_not(), -kInfinity);
    }
  };
  template <class Visit>
  static void for_each_range(const step::Heads<Tensor>& x, const step::PackedRanges<Tensor>& ranges,
                             const Visit& visit) {
    const auto* rows = ranges.queries.const_data_ptr<std::int32_t>();
    const auto* keys = ranges.keys.const_data_ptr<std::int32_t>();
    ASSERT_EQ(ranges.queries.numel(), ranges.count + 1);
    ASSERT_EQ(rows[ranges.count], x.q.size(0));
    ASSERT_EQ(keys[ranges.count], x.k.size(0));
    for (std::int64_t i = 0; i < ranges.count; ++i) {
      const std::int64_t n = rows[i + 1] - rows[i], m = keys[i + 1] - keys[i];
      EXPECT_LE(n, ranges.most_queries);
      EXPECT_LE(m, ranges.most_keys);
      const auto part = [](const Tensor& t, std::int64_t first, std::int64_t count) {
        const Tensor head = t.narrow(0, first, count).transpose(0, 1);
        return head.size(0) == kHeads ? head : head.repeat_interleave(kHeads / kKeyHeads, 0);
      };
      visit(Range{rows[i], n, keys[i], m, ranges.causal, part(x.q, rows[i], n),
                  part(x.k, keys[i], m), part(x.v, keys[i], m)});
    }
  }
};

struct Results {
  Tensor out;  // (N, H * D)
  step::Heads<Tensor> d;
};

// One sequence after another.
Results whole(const step::Heads<Tensor>& x, const Tensor& dy,
              const std::vector<std::int64_t>& lengths, const step::ScoreOptions& options) {
  AtenOps ops(at::kCPU);
  std::vector<Tensor> out, q, k, v;
  std::int64_t next = 0;
  for (const std::int64_t n : lengths) {
    const std::int64_t first = std::exchange(next, next + n);
    if (n == 0) continue;
    const auto rows = [&](const Tensor& t) { return t.narrow(0, first, n); };
    auto saved = step::chunked_attention(ops, step::Heads<Tensor>{rows(x.q), rows(x.k), rows(x.v)},
                                         1, options);
    out.push_back(saved.out);
    const auto d = step::chunked_attention_backward(ops, std::move(saved), rows(dy));
    q.push_back(d.q);
    k.push_back(d.k);
    v.push_back(d.v);
  }
  return {at::cat(out), {at::cat(q), at::cat(k), at::cat(v)}};
}

struct Way {
  AttentionKernel kernel = AttentionKernel::kProducts;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kDouble;
  double near = 1e-12;
  [[nodiscard]] Tensor in(const Tensor& t) const { return t.to(device, dtype); }
  [[nodiscard]] Tensor rounded(const Tensor& t) const { return t.to(dtype).to(at::kDouble); }
};

template <class Ops>
Results of_rank(Table& table, const spec::ContextShard& shard, const Way& way,
                const step::Heads<Tensor>& x, const Tensor& dy,
                const std::vector<std::int64_t>& lengths, const step::ScoreOptions& options) {
  ThreadRanks ranks(table, static_cast<int>(shard.rank), static_cast<int>(shard.ranks));
  Ops ops(way.device, {}, {nullptr, &ranks});
  step::Spans<Tensor> spans{std::ssize(lengths), 50, lengths};
  spans.context = shard;
  spans = step::with_places(ops, std::move(spans));
  auto saved = step::context_attention(ops, way.kernel, step::Heads<Tensor>(x), spans, options);
  Results out{saved.out, {}};
  out.d = step::context_attention_backward(ops, std::move(saved), Tensor(dy));
  return out;
}

// Of the last two dimensions' rows, those of a rank; padding is `padding`.
Tensor rows_of(const Tensor& all, const std::vector<std::int64_t>& tokens, double padding) {
  const Tensor with_padding =
      at::cat({all, at::full({1, all.size(1), all.size(2)}, padding, all.options())});
  return with_padding.index_select(0, at::tensor(tokens, at::kLong));
}

void expect_same(const std::vector<std::int64_t>& lengths, std::int64_t ranks, bool ring,
                 const Way& way, const step::ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  at::manual_seed(7);
  const auto random = [&](std::int64_t heads) {
    return way.rounded(at::randn({all, heads, kWidth}, at::kDouble));
  };
  const step::Heads<Tensor> x{random(kHeads), random(kKeyHeads), random(kKeyHeads)};
  const Tensor dy = random(kHeads);
  const Results expected = whole(x, dy.view({all, -1}), lengths, options);

  // The rows of all ranks, rank by rank; padding has the number of all tokens.
  const std::vector<std::int64_t> tokens = spec::context_places(lengths, ranks).tokens;
  const auto each = static_cast<std::int64_t>(tokens.size()) / ranks;
  std::vector<Results> results(static_cast<std::size_t>(ranks));
  Table table(static_cast<int>(ranks));
  std::vector<std::thread> threads;
  const auto part_of = [&](std::int64_t rank) {
    return std::vector<std::int64_t>(tokens.begin() + rank * each,
                                     tokens.begin() + (rank + 1) * each);
  };
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const at::NoGradGuard no_grad_here;
      const std::vector<std::int64_t> part = part_of(rank);
      const step::Heads<Tensor> own{way.in(rows_of(x.q, part, 3)), way.in(rows_of(x.k, part, 3)),
                                    way.in(rows_of(x.v, part, 3))};
      const Tensor own_dy = way.in(rows_of(dy, part, 0).view({each, -1}));
      const spec::ContextShard shard{ranks, rank, ring};
      results[static_cast<std::size_t>(rank)] =
          way.kernel == AttentionKernel::kFlash && way.device.is_cpu()
              ? of_rank<RangesOps>(table, shard, way, own, own_dy, lengths, options)
              : of_rank<AtenOps>(table, shard, way, own, own_dy, lengths, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE(rank);
    const Results& got = results[static_cast<std::size_t>(rank)];
    const Tensor part = at::tensor(part_of(rank), at::kLong);
    const Tensor real = part.lt(all).nonzero().view({-1});
    const auto same = [&](const Tensor& mine, const Tensor& of_all, const char* what) {
      const Tensor here = mine.to(at::kCPU, at::kDouble);
      EXPECT_FALSE(here.isnan().any().item<bool>()) << what;
      if (real.numel() == 0) return;
      const Tensor there = of_all.index_select(0, part.index_select(0, real));
      EXPECT_LT((here.index_select(0, real) - there).abs().max().item<double>(), way.near) << what;
    };
    same(got.out, expected.out, "out");
    same(got.d.q, expected.d.q, "queries");
    same(got.d.k, expected.d.k, "keys");
    same(got.d.v, expected.d.v, "values");
  }
}

TEST(ContextAttention, IsThatOfWholeSequences) {
  at::set_num_threads(1);
  const std::vector<std::int64_t> some = {5, 0, 1, 12, 7, 40, 2, 33};
  std::vector<std::int64_t> many(40);  // more than a call of a kernel takes
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i * 7 % 11);
  for (const auto& lengths : {some, many}) {
    for (const std::int64_t ranks : {2, 3, 4}) {
      for (const bool ring : {false, true}) {
        const step::ScoreOptions plain{0.4};
        SCOPED_TRACE(format("{} sequences, {} ranks, {}", lengths.size(), ranks,
                            ring ? "a ring" : "gathered"));
        expect_same(lengths, ranks, ring, {AttentionKernel::kFlash}, plain);
        if (lengths == many) continue;
        for (const step::ScoreOptions& options :
             {plain, step::ScoreOptions{0.4, 0.8}, step::ScoreOptions{0.4, 0, 3},
              step::ScoreOptions{0.4, 0, 1}, step::ScoreOptions{0.4, 0, 11},
              step::ScoreOptions{0.4, 0.8, 5, true}, step::ScoreOptions{0.4, 0, 0, true}}) {
          SCOPED_TRACE(format("cap {}, window {}, biases {}", options.softcap, options.window,
                              options.alibi));
          expect_same(lengths, ranks, ring, {}, options);
        }
      }
    }
  }
}

TEST(ContextAttention, OnACardIsThatOfWholeSequences) {
  const char* device = std::getenv("NEAP_TEST_DEVICE");
  if (device == nullptr || std::string_view(device) != "cuda" || !bridge::torch_cuda().available)
    GTEST_SKIP() << "NEAP_TEST_DEVICE=cuda";
  std::vector<std::int64_t> lengths = {5, 0, 1, 700, 129, 40, 2, 1033};
  lengths.resize(40, 6);
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (const bool ring : {false, true}) {
      SCOPED_TRACE(format("{} ranks, {}", ranks, ring ? "a ring" : "gathered"));
      const step::ScoreOptions plain{0.4};
      expect_same(lengths, ranks, ring, {AttentionKernel::kFlash, at::kCUDA, at::kBFloat16, 0.1},
                  plain);
      expect_same(lengths, ranks, ring, {AttentionKernel::kProducts, at::kCUDA, at::kFloat, 1e-4},
                  plain);
    }
  }
}

}  // namespace
}  // namespace neap::ops

// Chunks of prompts, and a second layout of the cache under the same passes and scheduler.
#include <gmock/gmock.h>

#include <numeric>

#include "base/format.h"
#include "generator_fixture.h"
#include "rollout/generation.h"
#include "step/counting/counting_ops.h"

namespace neap::rollout {
namespace {

using ops::AtenOps;
using step::ScoreOptions;

// Blocks of a few tokens, found by a table for each row; attention reads gathered keys.
class BlockCache {
 public:
  BlockCache(const spec::Architecture& a, std::int64_t rows, std::int64_t max_tokens,
             std::int64_t blocks)
      : max_tokens_(max_tokens), tables_(static_cast<std::size_t>(rows)) {
    for (std::int64_t i = 0; i < a.num_hidden_layers; ++i) {
      for (std::vector<at::Tensor>* to : {&keys_, &values_})
        to->push_back(at::full({blocks, kTokens, a.num_key_value_heads, a.head_dim}, std::nan(""),
                               at::kDouble));
    }
    free_.resize(static_cast<std::size_t>(blocks));
    std::iota(free_.begin(), free_.end(), 0);
  }

  [[nodiscard]] std::int64_t rows() const { return std::ssize(tables_); }
  [[nodiscard]] std::int64_t max_tokens() const { return max_tokens_; }
  void clear(AtenOps& ops) {
    for (const auto* tensors : {&keys_, &values_}) {
      for (const at::Tensor& t : *tensors) ops.zero_(t);
    }
  }
  bool start(std::int64_t row, std::int64_t tokens) {
    const std::size_t blocks = static_cast<std::size_t>((tokens + kTokens - 1) / kTokens);
    if (free_.size() < blocks) {
      ++refusals;
      return false;
    }
    for (std::size_t i = 0; i < blocks; ++i) {
      table(row).push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  void end(std::int64_t row) {
    free_.insert(free_.end(), table(row).begin(), table(row).end());
    table(row).clear();
  }
  void move(AtenOps&, std::int64_t from, std::int64_t to, std::int64_t) {
    table(to) = std::exchange(table(from), {});
    ++moves;
  }

  void store_prompts(AtenOps&, std::size_t block, const at::Tensor& rows,
                     const step::Heads<at::Tensor>& heads, std::int64_t length) const {
    for (std::int64_t j = 0; j < rows.size(0); ++j) {
      for (std::int64_t b = 0; b < rows.size(1); ++b)
        store(block, rows[j][b].item<std::int64_t>(), 0, heads, b * length, length);
    }
  }
  step::AttentionContext<at::Tensor> attend_chunk(AtenOps& ops, std::size_t block,
                                                  const step::PromptChunk& chunk,
                                                  const step::Heads<at::Tensor>& heads,
                                                  const ScoreOptions& options) const {
    const std::int64_t n = heads.q.size(0);
    for (const std::int64_t row : chunk.rows) store(block, row, chunk.first, heads, 0, n);
    step::AttentionContext<at::Tensor> out;
    out.out =
        step::attention_of_last(ops, heads.q, gather(keys_[block], chunk.rows[0], chunk.first + n),
                                gather(values_[block], chunk.rows[0], chunk.first + n), options);
    return out;
  }

  struct Step {
    at::Tensor positions;
    step::DecodeKeys<at::Tensor> all, window;
  };
  [[nodiscard]] Step step(AtenOps& ops, const spec::Architecture& a, const at::Tensor& positions,
                          const step::KeyLimit& limit, step::Dtype dtype) const {
    const auto seen = [&](std::int64_t window) {
      step::DecodeKeys<at::Tensor> out;
      out.limit = limit.rounded;
      out.mask = ops.decode_mask(positions, limit.rounded, window, dtype);
      return out;
    };
    return {positions, seen(0), seen(a.sliding_window)};
  }
  [[nodiscard]] at::Tensor attend_token(AtenOps& ops, std::size_t block, const Step& step,
                                        const step::Heads<at::Tensor>& heads,
                                        const step::Rotation<at::Tensor>&,
                                        const ScoreOptions& options) const {
    std::vector<at::Tensor> keys, values;
    for (std::int64_t b = 0; b < step.positions.size(0); ++b) {
      if (table(b).empty()) {  // an idle row
        keys.push_back(
            at::zeros({1, heads.k.size(1), step.all.limit, heads.k.size(2)}, at::kDouble));
        values.push_back(keys.back());
        continue;
      }
      store(block, b, step.positions[b].item<std::int64_t>(), heads, b, 1);
      keys.push_back(gather(keys_[block], b, step.all.limit));
      values.push_back(gather(values_[block], b, step.all.limit));
    }
    return ops.decode_attention(heads.q, at::cat(keys), at::cat(values),
                                options.window > 0 ? step.window : step.all, options);
  }

  int moves = 0, refusals = 0;

 private:
  static constexpr std::int64_t kTokens = 3;
  [[nodiscard]] std::vector<std::int64_t>& table(std::int64_t row) {
    return tables_[static_cast<std::size_t>(row)];
  }
  [[nodiscard]] const std::vector<std::int64_t>& table(std::int64_t row) const {
    return tables_[static_cast<std::size_t>(row)];
  }
  // Rows [from, from + count) of the heads as tokens [first, first + count) of a row. Rows that share
  // a prompt may have fewer blocks than its padding.
  void store(std::size_t block, std::int64_t row, std::int64_t first,
             const step::Heads<at::Tensor>& heads, std::int64_t from, std::int64_t count) const {
    const auto& blocks = table(row);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>((first + i) / kTokens);
      if (at >= blocks.size()) break;
      keys_[block][blocks[at]][(first + i) % kTokens].copy_(heads.k[from + i]);
      values_[block][blocks[at]][(first + i) % kTokens].copy_(heads.v[from + i]);
    }
  }
  // (1, K, tokens, D); zero beyond the row's blocks.
  [[nodiscard]] at::Tensor gather(const at::Tensor& cache, std::int64_t row,
                                  std::int64_t tokens) const {
    at::Tensor all = cache.index_select(0, at::tensor(table(row), at::kLong)).flatten(0, 1);
    if (all.size(0) < tokens)
      all =
          at::cat({all, at::zeros({tokens - all.size(0), all.size(1), all.size(2)}, at::kDouble)});
    return all.narrow(0, 0, tokens).transpose(0, 1).unsqueeze(0).contiguous();
  }

  std::int64_t max_tokens_;
  std::vector<at::Tensor> keys_, values_;  // (blocks, kTokens, K, D)
  std::vector<std::vector<std::int64_t>> tables_;
  std::vector<std::int64_t> free_;
};
static_assert(step::KvLayout<BlockCache, AtenOps>);
static_assert(step::KvLayout<ops::KvCache, AtenOps>);
static_assert(step::KvLayout<step::SlotCache<step::CountedTensor>, step::CountingOps>);

struct Features {
  const char* name;
  void (*set)(spec::Architecture&);
};
class EveryKindOfAttention : public Generator, public ::testing::WithParamInterface<Features> {
 protected:
  EveryKindOfAttention() {
    GetParam().set(shape_);
    model_ = make();
    // Three sequences of each prompt; some end early, so that rows move.
    for (std::uint64_t i = 0; i < 5; ++i) {
      std::vector<std::int64_t> tokens;
      for (std::uint64_t k = 0; k < 2 + 3 * i; ++k)
        tokens.push_back(static_cast<std::int64_t>(1 + (i * 11 + k * 5) % 49));
      for (std::uint64_t k = 0; k < 3; ++k)
        long_prompts_.push_back({tokens, random_key({4, i, k})});
    }
    options_.prompt_width = kLongest;
    options_.eos_token_ids.resize(12);
    std::iota(options_.eos_token_ids.begin(), options_.eos_token_ids.end(), 0);
    options_.sampling.log_probs = true;
  }
  static constexpr std::int64_t kLongest = 14;

  [[nodiscard]] std::int64_t width() const { return kLongest + options_.max_new_tokens; }
  std::vector<Response> with_slots(std::int64_t rows) {
    cache_ = ops::KvCache::over(
        at::full({ops::KvCache::elements(shape_, rows, width())}, std::nan(""), at::kDouble),
        shape_, rows, width());
    return generate(model_, cache_, long_prompts_, options_);
  }
  static void expect_same(const std::vector<Response>& got, const std::vector<Response>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      EXPECT_EQ(got[i].ended, want[i].ended) << i;
      EXPECT_THAT(got[i].log_probs,
                  ::testing::Pointwise(::testing::FloatNear(1e-5F), want[i].log_probs))
          << i;
    }
  }
  std::vector<Prompt> long_prompts_;
};

TEST_P(EveryKindOfAttention, PromptsInChunksGiveTheSameText) {
  options_.prefill = {100, kLongest};
  const std::vector<Response> whole = with_slots(15);
  for (const std::int64_t chunk : {1, 3, 5, 13}) {
    for (const std::int64_t rows : {15, 4, 1}) {
      SCOPED_TRACE(format("chunks of {} in {} rows", chunk, rows));
      options_.prefill = spec::prefill_shape(100, kLongest, chunk);
      EXPECT_EQ(options_.prefill.tokens, chunk);
      expect_same(with_slots(rows), whole);
    }
  }
}

TEST_P(EveryKindOfAttention, TextDoesNotDependOnItsNeighbours) {
  options_.prefill = {100, kLongest};
  const std::vector<Response> together = with_slots(15);
  const std::vector<Prompt> all = long_prompts_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    long_prompts_ = {all[i]};
    expect_same(with_slots(1), {together[i]});
  }
}

TEST_P(EveryKindOfAttention, AnotherLayoutGivesTheSameText) {
  options_.prefill = {100, kLongest};
  const std::vector<Response> slots = with_slots(15);
  const std::int64_t longest = width();
  int moves = 0, refusals = 0;
  for (const std::int64_t chunk : {kLongest, std::int64_t{5}}) {
    for (const auto& [rows, blocks] : {std::pair{15, 150}, std::pair{6, 30}, std::pair{3, 9}}) {
      SCOPED_TRACE(format("chunks of {}, {} rows, {} blocks", chunk, rows, blocks));
      options_.prefill = spec::prefill_shape(100, kLongest, chunk);
      BlockCache cache(shape_, rows, longest, blocks);
      expect_same(generate_in(model_, cache, long_prompts_, options_), slots);
      moves += cache.moves;
      refusals += cache.refusals;
    }
  }
  EXPECT_GT(moves, 0);
  EXPECT_GT(refusals, 0);  // sequences waited for blocks
}

TEST_P(EveryKindOfAttention, ACacheWithoutRoomForOneSequenceIsAnError) {
  options_.prefill = {100, kLongest};
  BlockCache cache(shape_, 4, width(), 5);
  EXPECT_THROW((void)generate_in(model_, cache, long_prompts_, options_), Error);
}

INSTANTIATE_TEST_SUITE_P(
    Attention, EveryKindOfAttention,
    ::testing::Values(Features{"plain", [](spec::Architecture&) {}},
                      Features{"window",
                               [](spec::Architecture& a) {
                                 a.sliding_window = 4;
                                 a.sliding_layers = {true, false};
                               }},
                      Features{"capped", [](spec::Architecture& a) { a.attention_softcap = 2; }},
                      Features{"alibi",
                               [](spec::Architecture& a) {
                                 a.rotary.dimensions = 0;
                                 a.alibi = true;
                               }},
                      // The shorter sequences end before the length at which the rotation changes.
                      Features{"dynamic",
                               [](spec::Architecture& a) {
                                 a.rotary.scaling = spec::Rotary::Scaling::kDynamic;
                                 a.rotary.factor = 4;
                                 a.rotary.original_max_positions = 16;
                               }},
                      Features{"longrope",
                               [](spec::Architecture& a) {
                                 a.rotary.scaling = spec::Rotary::Scaling::kLongrope;
                                 a.rotary.original_max_positions = 16;
                                 a.rotary.short_factors = {1, 1.1F, 1.3F, 1.5F};
                                 a.rotary.long_factors = {1, 2, 4, 8};
                               }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace neap::rollout

// Chunks of prompts, and pages of the cache under the same passes and scheduler.
#include <gmock/gmock.h>

#include <numeric>

#include "base/format.h"
#include "generator_fixture.h"
#include "rollout/generation.h"
#include "step/counting/counting_ops.h"

namespace neap::rollout {
namespace {

using ops::AtenOps;
static_assert(step::KvLayout<ops::PagedKvCache, AtenOps>);
static_assert(step::KvLayout<step::PagedCache<step::CountedTensor>, step::CountingOps>);
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

// Prompts of up to three pages, four sequences of each.
class Pages : public EveryKindOfAttention {
 protected:
  static constexpr std::int64_t kWidth = 150, kNew = 150;
  Pages() {
    shape_.max_position_embeddings = 512;
    model_ = make();
    long_prompts_.clear();
    std::uint64_t number = 0;
    for (const std::uint64_t length : {20U, 64U, 70U, 128U, 150U}) {
      std::vector<std::int64_t> tokens;
      for (std::uint64_t k = 0; k < length; ++k)
        tokens.push_back(static_cast<std::int64_t>(13 + (length * 11 + k * 5) % 37));
      for (std::uint64_t k = 0; k < 4; ++k)
        long_prompts_.push_back({tokens, random_key({4, ++number})});
    }
    options_.prompt_width = kWidth;
    options_.max_new_tokens = kNew;
    options_.eos_token_ids = {3};
    options_.on_action = [this](const step::GenerationAction& action) {
      if (std::holds_alternative<step::EndRow>(action)) ++ended_;
      if (std::holds_alternative<step::MoveRow>(action)) ++moves_;
      const auto* const chunk = std::get_if<step::PrefillChunk>(&action);
      if (chunk != nullptr && chunk->first > 0 && chunk->width == kWidth) ++later_chunks_;
    };
  }
  [[nodiscard]] static std::int64_t longest() { return kWidth + kNew; }
  std::vector<Response> in_slots(std::int64_t rows) {
    ops::KvCache cache = ops::KvCache::over(
        at::full({ops::KvCache::elements(shape_, rows, longest())}, std::nan(""), at::kDouble),
        shape_, rows, longest());
    return generate(model_, cache, long_prompts_, options_);
  }
  std::vector<Response> in_pages(std::int64_t rows, std::int64_t pages) {
    const step::CacheShape shape{rows, longest(), pages};
    auto cache = std::get<ops::PagedKvCache>(ops::cache_over(
        at::full({ops::KvCache::elements(shape_, 1, shape.tokens())}, std::nan(""), at::kDouble),
        at::zeros({rows * shape.row_pages()}, at::kLong), shape_, shape));
    ended_ = moves_ = later_chunks_ = 0;
    std::vector<Response> out = generate_in(model_, cache, long_prompts_, options_);
    EXPECT_EQ(cache.pages().free_pages(), pages);
    return out;
  }
  std::int64_t ended_ = 0, moves_ = 0, later_chunks_ = 0;
};

TEST_P(Pages, GiveTheSameBitsAsSlots) {
  for (const std::int64_t chunk : {kWidth, std::int64_t{50}}) {
    SCOPED_TRACE(format("chunks of {}", chunk));
    options_.prefill = spec::prefill_shape(5, kWidth, chunk);
    EXPECT_TRUE(in_pages(20, 120) == in_slots(20));
    EXPECT_EQ(ended_, std::ssize(long_prompts_));  // none waited again
  }
}

// Sequences that start while others have their prompt's pages compute the rest of the prompt.
TEST_P(Pages, SequencesThatStartLaterGiveTheSameText) {
  options_.prefill = {5, kWidth};
  for (const std::int64_t rows : {6, 3, 2}) {
    SCOPED_TRACE(format("{} rows", rows));
    const std::vector<Response> pages = in_pages(rows, 6 * rows);
    EXPECT_GT(later_chunks_, 0);
    EXPECT_EQ(ended_, std::ssize(long_prompts_));
    expect_same(pages, in_slots(rows));
  }
}

TEST_P(Pages, SequencesThatWaitGiveTheSameText) {
  options_.eos_token_ids = {};
  options_.prefill = {100, kWidth};
  const std::vector<Response> slots = in_slots(20);
  std::int64_t waits = 0, moves = 0;
  for (const std::int64_t chunk : {kWidth, std::int64_t{50}}) {
    for (const auto& [rows, pages] : {std::pair{20, 30}, std::pair{12, 11}, std::pair{6, 5}}) {
      SCOPED_TRACE(format("chunks of {}, {} rows, {} pages", chunk, rows, pages));
      options_.prefill = spec::prefill_shape(100, kWidth, chunk);
      expect_same(in_pages(rows, pages), slots);
      waits += ended_ - std::ssize(long_prompts_);
      moves += moves_;
    }
  }
  EXPECT_GT(waits, 0);
  EXPECT_GT(moves, 0);
}

TEST_P(Pages, TooFewForOneSequenceIsAnError) {
  options_.prefill = {100, kWidth};
  options_.eos_token_ids = {};
  EXPECT_THROW((void)in_pages(4, 3), Error);
}

const auto kFeatures =
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
                      Features{"longrope", [](spec::Architecture& a) {
                                 a.rotary.scaling = spec::Rotary::Scaling::kLongrope;
                                 a.rotary.original_max_positions = 16;
                                 a.rotary.short_factors = {1, 1.1F, 1.3F, 1.5F};
                                 a.rotary.long_factors = {1, 2, 4, 8};
                               }});
const auto kName = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Attention, EveryKindOfAttention, kFeatures, kName);
INSTANTIATE_TEST_SUITE_P(Attention, Pages, kFeatures, kName);

}  // namespace
}  // namespace neap::rollout

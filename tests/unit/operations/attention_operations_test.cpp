// Attention and the cache of keys and values take the memory that is counted.
#include <gtest/gtest.h>

#include "base/format.h"
#include "conformance.h"
#include "operations_fixture.h"
#include "step/attention/context_calls.h"
#include "step/model/kv_layout.h"

namespace neap {
namespace {

using step::Dtype;

// Widths for every kernel: a GPU's fused kernels take rows of 16 bytes.
TEST_P(Operations, Attention) {
  const Dtype d = GetParam();
  for (const std::int64_t width : {16, 18, 20, 96, 192}) {
    for (const std::int64_t length : {5, 64, 200, 800}) {
      for (const std::int64_t key_heads : {4, 2}) {
        SCOPED_TRACE(format("width {}, length {}, {} key heads", width, length, key_heads));
        same("attention", [=](auto& ops, auto in) {
          return [&ops, length, q = in({2 * length, 4, width}, d),
                  k = in({2 * length, key_heads, width}, d),
                  v = in({2 * length, key_heads, width}, d), dy = in({2 * length, 4 * width}, d),
                  cos = in({length, width / 2}, d), sin = in({length, width / 2}, d)] {
            (void)ops.rotate(q, cos, sin, false);
            auto saved = ops.attention({q, k, v}, {2, length}, {0.25, 0});
            (void)ops.attention_backward(std::move(saved), dy);
          };
        });
      }
    }
  }
}

// Sequences of different lengths without padding; the window hides keys of the longest only.
TEST_P(Operations, AttentionOfPackedSequences) {
  const Dtype d = GetParam();
  const std::vector<std::int64_t> lengths = {5, 200, 1, 64};
  for (const std::int64_t width : {16, 18, 96, 192}) {
    for (const std::int64_t key_heads : {4, 2}) {
      for (const step::ScoreOptions& options :
           {step::ScoreOptions{0.25, 0, 0}, {0.25, 2, 0}, {0.25, 0, 70}}) {
        SCOPED_TRACE(format("width {}, {} key heads, cap {}, window {}", width, key_heads,
                            options.softcap, options.window));
        same("packed attention", [=](auto& ops, auto in) {
          return [&ops, options, lengths, q = in({270, 4, width}, d),
                  k = in({270, key_heads, width}, d), v = in({270, key_heads, width}, d),
                  dy = in({270, 4 * width}, d)] {
            const auto starts = ops.starts_of(lengths);
            auto saved = ops.attention({q, k, v}, {4, 200, lengths, starts}, options);
            (void)ops.attention_backward(std::move(saved), dy);
          };
        });
      }
    }
  }
}

// The same where ranks divide them, more sequences than a kernel's call takes: gathered keys, and keys of a ring.
TEST_P(Operations, AttentionOfDividedSequences) {
  const Dtype d = GetParam();
  std::vector<std::int64_t> lengths = {5, 200, 0, 1, 64};
  lengths.resize(40, 3);
  for (const std::int64_t ranks : {2, 3}) {
    std::int64_t rows = 0;
    for (const std::int64_t length : lengths) rows += spec::rows_of_each(length, ranks);
    for (const bool ring : {false, true}) {
      for (const step::ScoreOptions& options :
           {step::ScoreOptions{0.25, 0, 0}, {0.25, 2, 0}, {0.25, 0, 7}, {0.25, 0, 0, true}}) {
        SCOPED_TRACE(format("{} ranks, {}, cap {}, window {}, biases {}", ranks,
                            ring ? "a ring" : "gathered", options.softcap, options.window,
                            options.alibi));
        testing::expect_same_requests(
            "divided attention",
            [=](auto& ops, auto in) {
              return [&ops, options, lengths, ranks, ring, q = in({rows, 4, 16}, d),
                      k = in({rows, 2, 16}, d), v = in({rows, 2, 16}, d), dy = in({rows, 64}, d)] {
                step::Spans<std::decay_t<decltype(q)>> spans{std::ssize(lengths), 200, lengths};
                spans.context = {ranks, ranks - 1, ring};
                auto saved =
                    ops.attention({q, k, v}, step::with_places(ops, std::move(spans)), options);
                (void)ops.attention_backward(std::move(saved), dy);
              };
            },
            static_cast<int>(ranks));
      }
    }
  }
}

TEST_P(Operations, MasksOfScores) {
  same("masks", [](auto& ops, auto in) {
    return [&ops, scores = in({4, 9, 23}, Dtype::kFloat32)] {
      for (const std::int64_t window : {0, 5}) {
        ops.hide_(scores, ops.causal_mask(9, 23, 14, window));
      }
    };
  });
}

// With a cap, a window or both, over one chunk of queries and over several.
TEST_P(Operations, AttentionInChunks) {
  const Dtype d = GetParam();
  for (const step::ScoreOptions& options :
       {step::ScoreOptions{0.25, 2, 0}, {0.25, 0, 7}, {0.25, 2, 7}}) {
    for (const std::int64_t length : {5, 40}) {
      same("attention", [=](auto& ops, auto in) {
        return
            [&ops, options, length, q = in({2 * length, 4, 16}, d), k = in({2 * length, 2, 16}, d),
             v = in({2 * length, 2, 16}, d), dy = in({2 * length, 64}, d)] {
              auto saved = ops.attention({q, k, v}, {2, length}, options);
              (void)ops.attention_backward(std::move(saved), dy);
              using T = std::decay_t<decltype(q)>;
              saved = step::chunked_attention(ops, step::Heads<T>{q, k, v}, 2, options, 800);
              (void)step::chunked_attention_backward(ops, std::move(saved), T(dy), 800);
            };
      });
    }
  }
}

TEST_P(Operations, AttentionOfFusedHeads) {
  const Dtype d = GetParam();
  same("fused", [d](auto& ops, auto in) {
    return [&ops, all = in({2 * 30, 3, 4, 16}, d), dy = in({2 * 30, 64}, d)] {
      auto saved =
          ops.attention({ops.select(all, 1, 0), ops.select(all, 1, 1), ops.select(all, 1, 2)},
                        {2, 30}, {0.25, 0});
      (void)ops.attention_backward(std::move(saved), dy);
    };
  });
}

TEST_P(Operations, DecodingAndCache) {
  const Dtype d = GetParam();
  for (const std::int64_t width : {16, 18}) {
    for (const std::int64_t key_heads : {4, 2}) {
      SCOPED_TRACE(format("width {}, {} key heads", width, key_heads));
      same("decode", [=](auto& ops, auto in) {
        return [&ops, q = in({3, 4, width}, d), row = in({3, key_heads, width}, d),
                rows = in({3 * 7, key_heads, width}, d), keys = in({3, key_heads, 600, width}, d),
                values = in({3, key_heads, 600, width}, d), at = in({3}, Dtype::kInt64)] {
          ops.write_prompts_(keys, at, rows, 7);
          ops.write_token_(keys, at, row);
          for (const auto& [window, softcap, limit] : {std::tuple{0, 0.0, 23},
                                                       {5, 0.0, 23},
                                                       {0, 30.0, 23},
                                                       {5, 30.0, 23},
                                                       {0, 0.0, 523}}) {
            const step::ScoreOptions options{0.25, softcap, window};
            const auto seen = ops.decode_keys(at, keys, 4, limit, options);
            (void)ops.decode_attention(q, keys, values, seen, options);
          }
        };
      });
    }
  }
}

TEST_P(Operations, PartsOfAPrompt) {
  const Dtype d = GetParam();
  for (const step::ScoreOptions& options :
       {step::ScoreOptions{0.25}, step::ScoreOptions{0.25, 30}, step::ScoreOptions{0.25, 0, 5},
        step::ScoreOptions{0.25, 0, 0, true}}) {
    same("chunk", [=](auto& ops, auto in) {
      using T = decltype(in({1}, d));
      step::SlotCache<T> cache{{in({3, 2, 40, 16}, d)}, {in({3, 2, 40, 16}, d)}};
      return [&ops, cache, q = in({9, 4, 16}, d), k = in({9, 2, 16}, d), v = in({9, 2, 16}, d),
              options] {
        for (const std::int64_t first : {0, 9, 18}) {
          const step::PromptChunk chunk{{2, 0}, first};
          (void)cache.attend_chunk(ops, 0, chunk, {q, k, v}, options);
        }
      };
    });
  }
}

}  // namespace
}  // namespace neap

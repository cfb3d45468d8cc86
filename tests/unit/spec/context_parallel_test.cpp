#include "spec/ranks/context_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <map>
#include <string>
#include <utility>

#include "spec/job/job.h"
#include "spec/ranks/context_ranges.h"
#include "spec/ranks/rank_groups.h"
#include "spec/recipe/recipe.h"
#include "spec/types/mesh.h"

namespace neap::spec {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMostRanks = 8, kLongest = 50;

std::int64_t count_of(const std::array<TokenRange, 2>& own) {
  return own[0].count + own[1].count;
}
// Pairs of a query and a key that it sees.
std::int64_t pairs_of(const std::array<TokenRange, 2>& own) {
  std::int64_t n = 0;
  for (const TokenRange& range : own)
    for (std::int64_t t = range.first; t < range.end(); ++t) n += t + 1;
  return n;
}

TEST(ContextParallel, EveryTokenIsOnOneRank) {
  for (std::int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (std::int64_t length = 0; length <= kLongest; ++length) {
      std::vector<int> seen(static_cast<std::size_t>(length));
      std::int64_t most = 0, least = length;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto own = own_tokens(length, {ranks, rank});
        ASSERT_LE(own[0].end(), own[1].first);
        ASSERT_LE(own[1].end(), length);
        for (const TokenRange& range : own)
          for (std::int64_t t = range.first; t < range.end(); ++t)
            ++seen[static_cast<std::size_t>(t)];
        most = std::max(most, count_of(own));
        least = std::min(least, count_of(own));
      }
      ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }))
          << length << " tokens of " << ranks;
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(most, rows_of_each(length, ranks));
      EXPECT_EQ(count_of(own_tokens(length, {ranks, 0})), most) << "the first rank has most";
    }
  }
}

TEST(ContextParallel, RanksHaveAboutAsManyPairs) {
  for (std::int64_t ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (const std::int64_t length : {2 * ranks, 64 * ranks, 1000L, 1001L, 1013L}) {
      const std::int64_t share = length * (length + 1) / 2 / ranks;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t pairs = pairs_of(own_tokens(length, {ranks, rank}));
        // One token of difference sees `length` keys at most.
        EXPECT_NEAR(static_cast<double>(pairs), static_cast<double>(share),
                    static_cast<double>(length % (2 * ranks) == 0 ? 1 : length))
            << length << " tokens, rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(ContextParallel, ChunksOfEightTokens) {
  EXPECT_THAT(own_tokens(8, {2, 0}), ElementsAre(TokenRange{0, 2}, TokenRange{6, 2}));
  EXPECT_THAT(own_tokens(8, {2, 1}), ElementsAre(TokenRange{2, 2}, TokenRange{4, 2}));
  EXPECT_THAT(own_tokens(3, {4, 2}), ElementsAre(TokenRange{2, 1}, TokenRange{3, 0}));
  EXPECT_THAT(own_tokens(3, {4, 3}), ElementsAre(TokenRange{3, 0}, TokenRange{3, 0}));
}

TEST(ContextParallel, PlacesAreThoseOfOwnTokens) {
  const std::vector<std::int64_t> lengths = {5, 0, 1, 12, 7};
  const std::int64_t all = 25;
  for (std::int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    const ContextPlaces places = context_places(lengths, ranks);
    ASSERT_EQ(std::ssize(places.rows), all);
    for (std::int64_t t = 0; t < all; ++t) {
      const std::int64_t row = places.rows[static_cast<std::size_t>(t)];
      EXPECT_EQ(places.tokens[static_cast<std::size_t>(row)], t);
    }
    std::int64_t row = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::int64_t first = 0;
      for (const std::int64_t length : lengths) {
        std::int64_t left = rows_of_each(length, ranks);
        for (const TokenRange& range : own_tokens(length, {ranks, rank}))
          for (std::int64_t t = range.first; t < range.end(); ++t, --left, ++row)
            EXPECT_EQ(places.tokens[static_cast<std::size_t>(row)], first + t);
        for (; left > 0; --left, ++row)
          EXPECT_EQ(places.tokens[static_cast<std::size_t>(row)], all) << "padding";
        first += length;
      }
    }
    EXPECT_EQ(row, std::ssize(places.tokens));
  }
}

// A token of a sequence; padding has the sequence's length.
struct Place {
  std::size_t sequence;
  std::int64_t token;
  friend auto operator<=>(const Place&, const Place&) = default;
};
// The rows of a rank.
std::vector<Place> rows_of(const std::vector<std::int64_t>& lengths, const ContextShard& shard) {
  std::vector<Place> out;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto end =
        static_cast<std::ptrdiff_t>(out.size()) + rows_of_each(lengths[s], shard.ranks);
    for (const TokenRange& range : own_tokens(lengths[s], shard))
      for (std::int64_t t = range.first; t < range.end(); ++t) out.push_back({s, t});
    out.resize(static_cast<std::size_t>(end), {s, lengths[s]});
  }
  return out;
}
std::vector<Place> tokens_of(const std::vector<std::int64_t>& lengths) {
  return rows_of(lengths, {1, 0});
}
// visit(query, key) for pairs of tokens that a call has.
template <class Visit>
void for_each_pair(const AttentionRanges& ranges, const std::vector<Place>& queries,
                   const std::vector<Place>& keys, const Visit& visit) {
  std::size_t first_query = 0, first_key = 0;
  for (std::size_t r = 0; r < ranges.queries.size(); ++r) {
    const std::int64_t n = ranges.queries[r], m = ranges.keys[r];
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t k = 0; k < (ranges.causal ? std::max<std::int64_t>(0, m - n + i + 1) : m);
           ++k)
        visit(queries.at(first_query + static_cast<std::size_t>(i)),
              keys.at(first_key + static_cast<std::size_t>(k)));
    first_query += static_cast<std::size_t>(n);
    first_key += static_cast<std::size_t>(m);
  }
  EXPECT_EQ(first_query, queries.size());
  EXPECT_EQ(first_key, keys.size());
}

TEST(ContextRanges, EveryQuerySeesEveryKeyUpToItsOwnOnce) {
  const std::vector<std::int64_t> lengths = {5, 0, 1, 12, 7, 3, 40, 2};
  for (std::int64_t ranks = 2; ranks <= kMostRanks; ++ranks) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (const bool ring : {false, true}) {
        const ContextShard shard{ranks, rank, ring};
        const std::vector<Place> rows = rows_of(lengths, shard);
        std::map<std::pair<Place, Place>, int> seen;
        double pairs = 0;
        for (std::int64_t round = 0; round < (ring ? ranks : 2); ++round) {
          const std::int64_t from = rank_of_round(shard, round);
          const AttentionRanges ranges =
              ring ? ring_ranges(lengths, shard, from)
                   : gathered_ranges(lengths, shard, static_cast<std::size_t>(round));
          EXPECT_LE(ranges.queries.size(), kRangesOfSequence * lengths.size());
          pairs += ranges.pairs();
          for_each_pair(ranges, rows, ring ? rows_of(lengths, {ranks, from}) : tokens_of(lengths),
                        [&](const Place& query, const Place& key) {
                          EXPECT_EQ(query.sequence, key.sequence);
                          const std::int64_t length = lengths[query.sequence];
                          if (query.token == length) return;  // padding
                          EXPECT_LE(key.token, query.token);
                          ++seen[{query, key}];
                        });
        }
        std::size_t expected = 0;
        for (const Place& row : rows)
          if (row.token < lengths[row.sequence])
            expected += static_cast<std::size_t>(row.token) + 1;
        EXPECT_EQ(seen.size(), expected) << "rank " << rank << " of " << ranks << ", ring " << ring;
        for (const auto& [pair, times] : seen) EXPECT_EQ(times, 1);
        EXPECT_GE(pairs, static_cast<double>(expected));
      }
    }
  }
}

TEST(Mesh, CopiesAreRanksAlongDataAndContext) {
  const Mesh mesh =
      Mesh().set(Axis::kPipe, 2).set(Axis::kData, 2).set(Axis::kContext, 3).set(Axis::kTensor, 2);
  EXPECT_EQ(mesh.ranks(), 24);
  EXPECT_EQ(mesh.size(Axis::kCopies), 6);
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::vector<std::int64_t> copies = mesh.line(rank, Axis::kCopies);
    ASSERT_EQ(std::ssize(copies), 6);
    EXPECT_EQ(copies[static_cast<std::size_t>(mesh.coordinate(rank, Axis::kCopies))], rank);
    EXPECT_EQ(mesh.coordinate(rank, Axis::kCopies),
              3 * mesh.coordinate(rank, Axis::kData) + mesh.coordinate(rank, Axis::kContext));
    for (const std::int64_t other : copies) {
      EXPECT_EQ(mesh.coordinate(other, Axis::kTensor), mesh.coordinate(rank, Axis::kTensor));
      EXPECT_EQ(mesh.coordinate(other, Axis::kPipe), mesh.coordinate(rank, Axis::kPipe));
    }
  }
  EXPECT_THAT(mesh.line(13, Axis::kCopies), ElementsAre(13, 15, 17, 19, 21, 23));
  EXPECT_THAT(mesh.line(13, Axis::kContext), ElementsAre(13, 15, 17));
  EXPECT_EQ(Mesh().size(Axis::kCopies), 1);
}

TEST(Mesh, NeighbouringCopiesSliceTogether) {
  const Mesh mesh = Mesh()
                        .set(Axis::kPipe, 2)
                        .set(Axis::kData, 2)
                        .set(Axis::kContext, 3)
                        .set(Axis::kTensor, 2)
                        .set_shards(2);
  EXPECT_EQ(mesh.size(Axis::kShards), 2);
  EXPECT_EQ(mesh.size(Axis::kReplicas), 3);
  EXPECT_THAT(mesh.line(13, Axis::kShards), ElementsAre(13, 15));
  EXPECT_THAT(mesh.line(17, Axis::kShards), ElementsAre(17, 19));
  EXPECT_THAT(mesh.line(13, Axis::kReplicas), ElementsAre(13, 17, 21));
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    EXPECT_EQ(mesh.coordinate(rank, Axis::kCopies),
              2 * mesh.coordinate(rank, Axis::kReplicas) + mesh.coordinate(rank, Axis::kShards));
    for (const Axis axis : {Axis::kShards, Axis::kReplicas})
      EXPECT_EQ(mesh.line(rank, axis)[static_cast<std::size_t>(mesh.coordinate(rank, axis))], rank);
  }
  const std::vector<RankGroup> groups = groups_of({mesh}, mesh);
  EXPECT_THAT(groups, Contains(group_along(mesh, Axis::kShards)));
  EXPECT_THAT(groups, Contains(group_along(mesh, Axis::kReplicas)));
}

TEST(Mesh, RanksThatSliceTogetherMayBeThoseOfAnAxis) {
  const Mesh all = Mesh().set(Axis::kData, 4).set(Axis::kTensor, 2);
  EXPECT_EQ(all.span(Axis::kShards), all.span(Axis::kData));
  EXPECT_EQ(all.size(Axis::kReplicas), 1);
  EXPECT_EQ(groups_of({all}, all).size(), 2U);
  const Mesh context = Mesh().set(Axis::kData, 4).set(Axis::kContext, 2).set_shards(2);
  EXPECT_EQ(context.span(Axis::kShards), context.span(Axis::kContext));
  EXPECT_EQ(context.span(Axis::kReplicas), context.span(Axis::kData));
  const Mesh some = Mesh().set(Axis::kData, 4).set_shards(2);
  EXPECT_NE(some.span(Axis::kShards), some.span(Axis::kData));
  EXPECT_THAT(some.line(3, Axis::kReplicas), ElementsAre(1, 3));
}

std::string refusal(std::vector<std::string> keys) {
  keys.insert(keys.begin(), {"actor_rollout_ref.model.path=model", "data.max_prompt_length=60",
                             "data.max_response_length=40", "data.train_batch_size=8"});
  Job job;
  const Status status = Job::load({}, keys, job);
  return status.ok() ? "" : status.message();
}

TEST(ContextParallel, WhatDoesNotGoTogetherIsRefused) {
  const std::string two = "parallel.context_parallel_size=2", ranks = "trainer.n_gpus_per_node=4";
  EXPECT_EQ(refusal({"task=sft", two, ranks}), "");
  EXPECT_THAT(refusal({"task=sft", "parallel.context_parallel_size=3", ranks}),
              HasSubstr("parallel.context_parallel_size 3 does not divide the 4 ranks"));
  EXPECT_THAT(refusal({"task=sft", two, ranks, "parallel.tensor_model_parallel_size=4"}),
              HasSubstr("parallel.tensor_model_parallel_size times parallel.context_parallel_size, "
                        "8 does not divide the 4 ranks"));
  EXPECT_THAT(refusal({"task=sft", two, ranks, "data.use_dynamic_bsz=false"}),
              HasSubstr("parallel.context_parallel_size 2 does not go with data.use_dynamic_bsz = "
                        "false: the ranks divide packed sequences; set true"));
  const std::string rewards = "reward_model.model.path=model";
  EXPECT_EQ(refusal({"task=ppo", two, ranks, rewards}), "");
  EXPECT_THAT(
      refusal({"task=ppo", two, ranks, rewards, "actor_rollout_ref.actor.use_dynamic_bsz=false"}),
      HasSubstr("parallel.context_parallel_size 2 does not go with "
                "actor_rollout_ref.actor.use_dynamic_bsz = false: the ranks divide packed "
                "sequences; set true"));
}

// Four ranks of which two divide sequences: four answer prompts, two parts of the batch are trained on.
TEST(ContextParallel, RowsAreDealtOnWhereResponsesAreGenerated) {
  const std::vector<std::string> keys = {"actor_rollout_ref.model.path=model",
                                         "reward_model.model.path=model",
                                         "data.max_prompt_length=60",
                                         "data.max_response_length=40",
                                         "data.train_batch_size=8",
                                         "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                                         "actor_rollout_ref.rollout.n=3",
                                         "task=grpo",
                                         "parallel.context_parallel_size=2",
                                         "trainer.n_gpus_per_node=4"};
  Job job;
  ASSERT_TRUE(Job::load({}, keys, job).ok());
  EXPECT_EQ(job.data_ranks(), 2);
  EXPECT_EQ(job.generating_ranks(), 4);
  EXPECT_EQ(job.rows_per_rank(job.main_model()), 4);
  EXPECT_EQ(job.sequences_per_rank(job.main_model()), 12);
  EXPECT_EQ(job.prompts_per_rank(), 2);
  EXPECT_EQ(job.responses_per_rank(), 6);
  EXPECT_EQ(job.rollout_batch(), 6);
  const Recipe recipe = describe(job);
  EXPECT_EQ(batching_of(job, *recipe.find(Body::kGenerate)).most_rows, 6);
  EXPECT_EQ(batching_of(job, *recipe.find(Body::kLogProbs)).most_rows, 12);
  EXPECT_EQ(batching_of(job, *recipe.find(Body::kPolicyUpdate)).most_rows, 3);
  EXPECT_EQ(update_shape(job, Body::kPolicyUpdate).updates(), 4);
}

// Of each key the ranks that share its rows.
TEST(ContextParallel, SizesOfBatchesAreMultiplesOfTheRanksThatShareThem) {
  const auto refused = [](const std::string& batch, const std::string& mini) {
    return refusal({"task=grpo", "parallel.context_parallel_size=2", "trainer.n_gpus_per_node=4",
                    "reward_model.model.path=model", "actor_rollout_ref.rollout.n=3",
                    "data.train_batch_size=" + batch,
                    "actor_rollout_ref.actor.ppo_mini_batch_size=" + mini});
  };
  EXPECT_EQ(refused("8", "2"), "");
  EXPECT_THAT(refused("6", "2"), HasSubstr("data.train_batch_size 6 cannot be shared by 4 ranks: "
                                           "it has to be a multiple, as 4 or 8"));
  EXPECT_THAT(refused("8", "1"),
              HasSubstr("actor_rollout_ref.actor.ppo_mini_batch_size 1 cannot be shared by 2 "
                        "ranks: it has to be a multiple, as 2"));
}

TEST(ContextParallel, ABudgetIsThatOfARank) {
  const std::string two = "parallel.context_parallel_size=2", ranks = "trainer.n_gpus_per_node=2";
  EXPECT_EQ(refusal({"task=sft", two, ranks, "data.max_token_len_per_gpu=50"}), "");
  EXPECT_THAT(refusal({"task=sft", two, ranks, "data.max_token_len_per_gpu=49"}),
              HasSubstr("data.max_token_len_per_gpu is 49; it has to be at least 50"));
  EXPECT_THAT(refusal({"task=sft", two, ranks, "data.max_token_len_per_gpu=49"}),
              HasSubstr("divided by 2 ranks"));
  const std::string rewards = "reward_model.model.path=model";
  const std::string actor = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=";
  EXPECT_EQ(refusal({"task=ppo", two, ranks, rewards, actor + "50"}), "");
  EXPECT_THAT(refusal({"task=ppo", two, ranks, rewards, actor + "49"}),
              HasSubstr("ppo_max_token_len_per_gpu is 49; it has to be at least 50"));
}

}  // namespace
}  // namespace neap::spec

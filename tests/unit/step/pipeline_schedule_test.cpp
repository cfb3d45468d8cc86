#include "step/pipeline/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "pipeline_shapes.h"
#include "step/pipeline/pipeline_rounds.h"

namespace neap::step {
namespace {

using Kind = PipelineAction::Kind;

// Every action of the shape: (kind, micro-batch, chunk) of a stage.
std::set<std::tuple<Kind, std::int64_t, std::int64_t>> expected(const PipelineShape& shape,
                                                                std::int64_t stage,
                                                                bool backward = true) {
  std::set<std::tuple<Kind, std::int64_t, std::int64_t>> out;
  for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
    const std::int64_t part = shape.part(stage, chunk);
    const bool before = part > 0 && shape.stages > 1;
    const bool behind = part + 1 < shape.parts() && shape.stages > 1;
    for (std::int64_t i = 0; i < shape.micro_batches; ++i) {
      out.insert({Kind::kForward, i, chunk});
      if (before) out.insert({Kind::kReceiveHidden, i, chunk});
      if (behind) out.insert({Kind::kSendHidden, i, chunk});
      if (!backward) continue;
      if (has_two_parts(shape, stage)) {
        out.insert({Kind::kBackwardInput, i, chunk});
        out.insert({Kind::kBackwardWeights, i, chunk});
      } else {
        out.insert({Kind::kBackward, i, chunk});
      }
      if (before) out.insert({Kind::kSendGradients, i, chunk});
      if (behind) out.insert({Kind::kReceiveGradients, i, chunk});
    }
  }
  return out;
}

void expect_each_once(const PipelineShape& shape, const std::vector<PipelineActions>& stages,
                      bool backward) {
  ASSERT_EQ(std::ssize(stages), shape.stages);
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    const PipelineActions& list = stages[static_cast<std::size_t>(stage)];
    std::set<std::tuple<Kind, std::int64_t, std::int64_t>> seen;
    for (const PipelineAction& a : list) seen.insert({a.kind, a.micro_batch, a.chunk});
    EXPECT_EQ(seen, expected(shape, stage, backward)) << name_of(shape) << ", stage " << stage;
    EXPECT_EQ(seen.size(), list.size()) << name_of(shape) << ", stage " << stage;
  }
}

// What an action needs of its own stage stands in front of it.
void expect_order(const PipelineShape& shape, std::int64_t stage, const PipelineActions& list) {
  std::map<std::tuple<Kind, std::int64_t, std::int64_t>, std::size_t> at;
  for (std::size_t i = 0; i < list.size(); ++i)
    at[{list[i].kind, list[i].micro_batch, list[i].chunk}] = i;
  const auto before = [&](const PipelineAction& a, Kind first) {
    const auto found = at.find({first, a.micro_batch, a.chunk});
    if (found == at.end()) return;
    const std::size_t mine = at[{a.kind, a.micro_batch, a.chunk}];
    EXPECT_LT(found->second, mine) << name_of(shape) << ", stage " << stage;
  };
  std::map<std::pair<Kind, std::int64_t>, std::int64_t> last;
  for (const PipelineAction& a : list) {
    if (a.kind == Kind::kForward) before(a, Kind::kReceiveHidden);
    if (a.kind == Kind::kSendHidden) before(a, Kind::kForward);
    for (const Kind backward : {Kind::kBackward, Kind::kBackwardInput}) {
      if (a.kind == backward) before(a, Kind::kForward);
      if (a.kind == backward) before(a, Kind::kReceiveGradients);
      if (a.kind == Kind::kSendGradients) before(a, backward);
    }
    if (a.kind == Kind::kBackwardWeights) before(a, Kind::kBackwardInput);
    // Of a chunk, micro-batches ascend: sums have the bits of accumulation.
    const auto [previous, first] = last.try_emplace({a.kind, a.chunk}, -1);
    EXPECT_LT(previous->second, a.micro_batch) << name_of(shape) << ", stage " << stage;
    previous->second = a.micro_batch;
  }
}

TEST(PipelineSchedule, EveryActionOnceBehindWhatItNeeds) {
  for (const PipelineShape& shape : random_shapes(300, 1)) {
    const auto stages = pipeline_schedule(shape);
    expect_each_once(shape, stages, true);
    for (std::int64_t stage = 0; stage < shape.stages; ++stage)
      expect_order(shape, stage, stages[static_cast<std::size_t>(stage)]);
  }
}

TEST(PipelineSchedule, BothSidesOfATransferStandInTheSameOrder) {
  for (const PipelineShape& shape : random_shapes(300, 2)) {
    const auto stages = pipeline_schedule(shape);
    // (forward, micro-batch, part that needs it) of each pair of stages, as each of them lists it.
    std::map<std::pair<std::int64_t, std::int64_t>,
             std::vector<std::tuple<bool, std::int64_t, std::int64_t>>>
        pairs[2];
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      for (const PipelineAction& a : stages[static_cast<std::size_t>(stage)]) {
        if (a.computes()) continue;
        const bool forward = a.kind == Kind::kSendHidden || a.kind == Kind::kReceiveHidden;
        const std::int64_t part = shape.part(stage, a.chunk);
        const std::int64_t needs = a.sends() ? (forward ? part + 1 : part - 1) : part;
        pairs[stage < a.peer ? 0 : 1][{std::min(stage, a.peer), std::max(stage, a.peer)}].push_back(
            {forward, a.micro_batch, needs});
      }
    }
    EXPECT_EQ(pairs[0], pairs[1]) << name_of(shape);
  }
}

TEST(PipelineSchedule, StagesThatMeetForEachTransferEnd) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> seconds(0.1, 10);
  for (const PipelineShape& shape : random_shapes(300, 4)) {
    PipelineTimes times = same_times(shape, 0, 0);
    for (double& t : times.forward) t = seconds(random);
    for (double& t : times.backward) t = seconds(random);
    for (double& t : times.weights) t = seconds(random);
    if (!shape.zero_bubble) times.weights.assign(times.weights.size(), 0);
    times.weights.front() = 0;
    for (std::int64_t s = 0; s < shape.stages; ++s) times.transfer.push_back(seconds(random));
    const auto run = run_pipeline(pipeline_schedule(shape), times);
    ASSERT_TRUE(run.ok()) << name_of(shape) << ": " << run.status().message();
    std::vector<double> busy(run->busy.size());
    for (std::size_t part = 0; part < times.forward.size(); ++part)
      busy[part % busy.size()] +=
          static_cast<double>(shape.micro_batches) *
          (times.forward[part] + times.backward[part] + times.weights[part]);
    for (std::size_t s = 0; s < run->busy.size(); ++s) EXPECT_NEAR(run->busy[s], busy[s], 1e-6);
    const auto inference = run_pipeline(pipeline_inference(shape), times);
    ASSERT_TRUE(inference.ok()) << name_of(shape);
  }
}

// Runs replicas of the stages side by side, which meet in each action that computes; a transfer waits for its other side.
// `micro_batches`: of each replica; in those behind it nothing is sent. Whether all come to their ends.
bool replicas_end(const std::vector<PipelineActions>& lists,
                  const std::vector<std::int64_t>& micro_batches) {
  const std::size_t stages = lists.size(), replicas = micro_batches.size();
  std::vector<std::vector<std::size_t>> next(replicas, std::vector<std::size_t>(stages));
  const auto action = [&](std::size_t r, std::size_t s) -> const PipelineAction* {
    std::size_t& at = next[r][s];
    const auto is_left_out = [&](const PipelineAction& each) {
      return !each.computes() && each.micro_batch >= micro_batches[r];
    };
    while (at < lists[s].size() && is_left_out(lists[s][at])) ++at;
    return at < lists[s].size() ? &lists[s][at] : nullptr;
  };
  const auto meet = [&](std::size_t s) {
    for (std::size_t r = 0; r < replicas; ++r)
      if (action(r, s) == nullptr || !action(r, s)->computes()) return false;
    for (std::size_t r = 0; r < replicas; ++r)
      EXPECT_TRUE(*action(r, s) == *action(0, s)) << "replicas meet in the same action";
    for (std::size_t r = 0; r < replicas; ++r) ++next[r][s];
    return true;
  };
  const auto transfer = [&](std::size_t r, std::size_t s) {
    const PipelineAction* const mine = action(r, s);
    if (mine == nullptr || mine->computes() || !mine->sends()) return false;
    const auto peer = static_cast<std::size_t>(mine->peer);
    const PipelineAction* const theirs = action(r, peer);
    if (theirs == nullptr || theirs->computes() || theirs->sends() ||
        theirs->peer != static_cast<std::int64_t>(s) || theirs->micro_batch != mine->micro_batch)
      return false;
    ++next[r][s];
    ++next[r][peer];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < stages; ++s) {
      while (meet(s)) moved = true;
      for (std::size_t r = 0; r < replicas; ++r)
        while (transfer(r, s)) moved = true;
    }
  }
  for (std::size_t r = 0; r < replicas; ++r)
    for (std::size_t s = 0; s < stages; ++s)
      if (action(r, s) != nullptr) return false;
  return true;
}

TEST(PipelineSchedule, ReplicasThatMeetInEachActionEnd) {
  std::mt19937 random(5);
  for (const PipelineShape& shape : random_shapes(200, 11)) {
    std::vector<std::int64_t> micro_batches;
    micro_batches.reserve(3);
    for (int replica = 0; replica < 3; ++replica)
      micro_batches.push_back(
          std::uniform_int_distribution<std::int64_t>(1, shape.micro_batches)(random));
    micro_batches[static_cast<std::size_t>(shape.stages % 3)] = shape.micro_batches;
    EXPECT_TRUE(replicas_end(pipeline_schedule(shape), micro_batches)) << name_of(shape);
    EXPECT_TRUE(replicas_end(pipeline_inference(shape), micro_batches)) << name_of(shape);
  }
  // Replicas that take their actions in another order wait for each other.
  std::vector<PipelineActions> lists = pipeline_schedule({2, 4, 1});
  std::swap(lists[1].front(), lists[1].back());
  EXPECT_FALSE(replicas_end(lists, {4, 4}));
}

TEST(PipelineSchedule, AStagesListIsItsPartOfAll) {
  for (const PipelineShape& shape : random_shapes(200, 8)) {
    const auto all = pipeline_schedule(shape);
    for (std::int64_t stage = 0; stage < shape.stages; ++stage)
      EXPECT_EQ(stage_schedule(shape, stage), all[static_cast<std::size_t>(stage)])
          << name_of(shape) << " " << stage;
  }
}

TEST(PipelineSchedule, EachBoundaryHasItsOwnTransfers) {
  const PipelineShape shape{3, 1, 1};
  PipelineTimes times = same_times(shape, 1, 2);
  times.transfer = {0.25, 4, 100};  // nothing goes from the last to the first
  const auto run = run_pipeline(pipeline_schedule(shape), times);
  ASSERT_TRUE(run.ok());
  EXPECT_DOUBLE_EQ(run->seconds, 3 * 3 + 2 * (0.25 + 4));
  EXPECT_EQ(run->transferring, (std::vector<double>{0.5, 8.5, 8}));
}

TEST(PipelineSchedule, StagesThatWaitForEachOtherAreFound) {
  const PipelineActions sends = {{Kind::kSendHidden, 0, 0, 1}, {Kind::kReceiveGradients, 0, 0, 1}};
  const PipelineActions sends_too = {{Kind::kSendGradients, 0, 0, 0},
                                     {Kind::kReceiveHidden, 0, 0, 0}};
  const auto run = run_pipeline({sends, sends_too}, {{1, 1}, {1, 1}});
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.status().message(), "Stage 0 of the pipeline waits at action 0");
}

TEST(PipelineSchedule, OneStageAccumulates) {
  const auto stages = pipeline_schedule({1, 3, 1});
  ASSERT_EQ(stages.size(), 1u);
  PipelineActions expected;
  for (std::int64_t i = 0; i < 3; ++i) {
    expected.push_back({Kind::kForward, i, 0, -1});
    expected.push_back({Kind::kBackward, i, 0, -1});
  }
  EXPECT_EQ(stages[0], expected);
}

TEST(PipelineSchedule, InferenceRunsEveryMicroBatchForward) {
  for (const PipelineShape& shape : random_shapes(100, 7)) {
    const auto stages = pipeline_inference(shape);
    expect_each_once(shape, stages, false);
    const auto run = run_pipeline(stages, same_times(shape, 1, 0));
    ASSERT_TRUE(run.ok()) << name_of(shape);
    if (shape.chunks == 1) {
      EXPECT_EQ(run->seconds, static_cast<double>(shape.micro_batches + shape.stages - 1));
    }
  }
}

PipelineActions unrolled(const PipelineActions& actions, const std::vector<PipelineRound>& rounds) {
  PipelineActions out;
  for (const PipelineRound& round : rounds) {
    const auto from = actions.begin() + static_cast<std::ptrdiff_t>(round.first);
    out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(round.actions) * round.times);
  }
  return out;
}

TEST(PipelineRounds, AreTheListAndLeaveAsMuchWaitingAsThereWas) {
  for (const PipelineShape& shape : random_shapes(300, 9)) {
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      const PipelineActions actions = stage_schedule(shape, stage);
      const auto rounds =
          rounds_of(shape, actions, [](std::int64_t a, std::int64_t b) { return a / 9 == b / 9; });
      EXPECT_EQ(unrolled(actions, rounds), actions) << name_of(shape);
      for (const PipelineRound& round : rounds) {
        if (round.times == 1) continue;
        std::map<std::tuple<Kind, std::int64_t>, std::int64_t> counts;
        for (std::size_t i = round.first; i < round.first + round.actions; ++i)
          ++counts[{actions[i].kind, actions[i].chunk}];
        for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
          const std::int64_t each = counts[{Kind::kForward, chunk}];
          if (has_two_parts(shape, stage)) {
            EXPECT_EQ(counts.at({Kind::kBackwardInput, chunk}), each);
            EXPECT_EQ(counts.at({Kind::kBackwardWeights, chunk}), each);
          } else {
            EXPECT_EQ(counts.at({Kind::kBackward, chunk}), each);
          }
          for (const Kind kind : {Kind::kReceiveHidden, Kind::kReceiveGradients}) {
            const auto found = counts.find({kind, chunk});
            EXPECT_TRUE(found == counts.end() || found->second == each) << name_of(shape);
          }
        }
        // One of them keeps as much at once as all.
        const auto until = [&](std::int64_t times) {
          const std::size_t end = round.first + round.actions * static_cast<std::size_t>(times);
          return storage_of({actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(end)});
        };
        EXPECT_EQ(until(1).tapes, until(round.times).tapes) << name_of(shape);
        EXPECT_EQ(until(1).received, until(round.times).received) << name_of(shape);
      }
    }
  }
}

TEST(PipelineRounds, LongListsHaveFew) {
  const auto same = [](std::int64_t, std::int64_t) { return true; };
  for (const PipelineShape& shape :
       {PipelineShape{4, 400, 1}, PipelineShape{4, 400, 3}, PipelineShape{4, 400, 1, true}}) {
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      const PipelineActions actions = stage_schedule(shape, stage);
      EXPECT_LT(std::ssize(rounds_of(shape, actions, same)), 8 * shape.parts()) << stage;
    }
    const auto inference = pipeline_inference(shape);
    EXPECT_LT(std::ssize(rounds_of(shape, inference[1], same)), 8 * shape.parts());
  }
}

}  // namespace
}  // namespace neap::step

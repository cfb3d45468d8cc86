// Schedules in full, and their bubbles and tapes beside the theory's.
#include "step/pipeline/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pipeline_shapes.h"

namespace neap::step {
namespace {

using Kind = PipelineAction::Kind;

// Two stages, two micro-batches: forward 1 s, backward 2 s, transfers 0.5 s that both stages take part in.
TEST(PipelineSchedule, TwoStagesTakeWhatTheyTakeByHand) {
  const PipelineShape shape{2, 2, 1};
  PipelineTimes times = same_times(shape, 1, 2);
  times.transfer = {0.5, 0.5};
  std::vector<PipelineSpan> spans;
  const auto run = run_pipeline(pipeline_schedule(shape), times, &spans);
  ASSERT_TRUE(run.ok());
  EXPECT_DOUBLE_EQ(run->seconds, 11);
  EXPECT_EQ(run->ends, (std::vector<double>{11, 9}));
  EXPECT_EQ(run->busy, (std::vector<double>{6, 6}));
  EXPECT_EQ(run->transferring, (std::vector<double>{2, 2}));
  std::vector<std::vector<double>> begins(2);
  for (const PipelineSpan& span : spans) begins[span.stage].push_back(span.begin);
  EXPECT_EQ(begins[0], (std::vector<double>{0, 1.5, 5.5, 9}));
  EXPECT_EQ(begins[1], (std::vector<double>{1.5, 3, 5.5, 6.5}));
}

TEST(PipelineSchedule, TwoStagesInFull) {
  const auto stages = pipeline_schedule({2, 2, 1});
  const PipelineActions first = {{Kind::kForward, 0, 0, -1},         {Kind::kSendHidden, 0, 0, 1},
                                 {Kind::kForward, 1, 0, -1},         {Kind::kSendHidden, 1, 0, 1},
                                 {Kind::kReceiveGradients, 0, 0, 1}, {Kind::kBackward, 0, 0, -1},
                                 {Kind::kReceiveGradients, 1, 0, 1}, {Kind::kBackward, 1, 0, -1}};
  const PipelineActions last = {{Kind::kReceiveHidden, 0, 0, 0}, {Kind::kForward, 0, 0, -1},
                                {Kind::kReceiveHidden, 1, 0, 0}, {Kind::kBackward, 0, 0, -1},
                                {Kind::kSendGradients, 0, 0, 0}, {Kind::kForward, 1, 0, -1},
                                {Kind::kBackward, 1, 0, -1},     {Kind::kSendGradients, 1, 0, 0}};
  EXPECT_EQ(stages[0], first);
  EXPECT_EQ(stages[1], last);
}

TEST(PipelineSchedule, KeepsAsManyTapesAsTheTheorySays) {
  for (const PipelineShape& shape : random_shapes(300, 5)) {
    const auto stages = pipeline_schedule(shape);
    const std::int64_t p = shape.stages, v = shape.chunks;
    for (std::int64_t s = 0; s < p; ++s) {
      const PipelineStorage storage = storage_of(stages[static_cast<std::size_t>(s)]);
      const std::int64_t most = shape.zero_bubble ? p
                                : v == 1          ? p - s
                                                  : 2 * (p - s - 1) + (v - 1) * p + 1;
      const std::int64_t tapes = std::min(most, shape.micro_batches * v);
      if (v == 1 || shape.micro_batches % p == 0) {
        EXPECT_EQ(storage.tapes, tapes) << name_of(shape);
      } else {
        EXPECT_LE(storage.tapes, tapes) << name_of(shape);
      }
      EXPECT_LE(storage.micro_batches, micro_batches_kept(shape, s)) << name_of(shape);
      if (shape.micro_batches >= 3 * p) {
        EXPECT_EQ(storage.micro_batches, micro_batches_kept(shape, s)) << name_of(shape);
      }
      // The first stage keeps p tapes of its whole share, times 1 + (p - 1) / (p v).
      if (s == 0 && v > 1) {
        EXPECT_EQ(most, p * v + p - 1);
      }
      if (v == 1) {
        EXPECT_LE(storage.received, 2) << name_of(shape);
      }
    }
  }
}

TEST(PipelineSchedule, TheBubbleIsWhatTheTheorySays) {
  for (const PipelineShape& shape : random_shapes(300, 6)) {
    if (shape.micro_batches < shape.stages) continue;
    if (shape.chunks > 1 && shape.micro_batches % shape.stages != 0) continue;
    for (const auto& [backward, weights] :
         {std::pair{1.0, 0.3}, {1.0, 0.5}, {1.6, 0.5}, {1.6, 0.8}, {2.0, 1.0}}) {
      const PipelineTimes times = same_times(shape, 1, backward, weights);
      const auto run = run_pipeline(pipeline_schedule(shape), times);
      ASSERT_TRUE(run.ok());
      // (p - 1) (F + B + W), of a chunk; zero bubble: (p - 1) (F + B - W).
      const double waits = 1 + backward - (shape.zero_bubble ? 2 * weights : 0);
      EXPECT_NEAR(run->seconds - run->busy[0], static_cast<double>(shape.stages - 1) * waits, 1e-9)
          << name_of(shape) << " " << backward << " " << weights;
    }
  }
}

// Zero bubble on the last of two stages: the weights' part comes a micro-batch later, and gradients go behind it while
// the first stage has a forward to do.
TEST(PipelineSchedule, ZeroBubbleInFull) {
  const PipelineActions first = {{Kind::kForward, 0, 0, -1},         {Kind::kSendHidden, 0, 0, 1},
                                 {Kind::kForward, 1, 0, -1},         {Kind::kSendHidden, 1, 0, 1},
                                 {Kind::kReceiveGradients, 0, 0, 1}, {Kind::kBackward, 0, 0, -1},
                                 {Kind::kForward, 2, 0, -1},         {Kind::kSendHidden, 2, 0, 1},
                                 {Kind::kReceiveGradients, 1, 0, 1}, {Kind::kBackward, 1, 0, -1},
                                 {Kind::kReceiveGradients, 2, 0, 1}, {Kind::kBackward, 2, 0, -1}};
  const PipelineActions last = {
      {Kind::kReceiveHidden, 0, 0, 0},   {Kind::kForward, 0, 0, -1},
      {Kind::kReceiveHidden, 1, 0, 0},   {Kind::kBackwardInput, 0, 0, -1},
      {Kind::kSendGradients, 0, 0, 0},   {Kind::kForward, 1, 0, -1},
      {Kind::kBackwardInput, 1, 0, -1},  {Kind::kBackwardWeights, 0, 0, -1},
      {Kind::kReceiveHidden, 2, 0, 0},   {Kind::kSendGradients, 1, 0, 0},
      {Kind::kForward, 2, 0, -1},        {Kind::kBackwardInput, 2, 0, -1},
      {Kind::kSendGradients, 2, 0, 0},   {Kind::kBackwardWeights, 1, 0, -1},
      {Kind::kBackwardWeights, 2, 0, -1}};
  const auto stages = pipeline_schedule({2, 3, 1, true});
  EXPECT_EQ(stages[0], first);
  EXPECT_EQ(stages[1], last);
}

// Two chunks of two stages, in full.
TEST(PipelineSchedule, TwoChunksInFull) {
  const PipelineActions expected = {
      {Kind::kReceiveHidden, 0, 0, 0},    {Kind::kForward, 0, 0, -1},
      {Kind::kReceiveHidden, 1, 0, 0},    {Kind::kSendHidden, 0, 0, 0},
      {Kind::kForward, 1, 0, -1},         {Kind::kReceiveHidden, 0, 1, 0},
      {Kind::kSendHidden, 1, 0, 0},       {Kind::kForward, 0, 1, -1},
      {Kind::kReceiveHidden, 1, 1, 0},    {Kind::kBackward, 0, 1, -1},
      {Kind::kSendGradients, 0, 1, 0},    {Kind::kForward, 1, 1, -1},
      {Kind::kBackward, 1, 1, -1},        {Kind::kReceiveGradients, 0, 0, 0},
      {Kind::kSendGradients, 1, 1, 0},    {Kind::kBackward, 0, 0, -1},
      {Kind::kReceiveGradients, 1, 0, 0}, {Kind::kSendGradients, 0, 0, 0},
      {Kind::kBackward, 1, 0, -1},        {Kind::kSendGradients, 1, 0, 0}};
  EXPECT_EQ(stage_schedule({2, 2, 2}, 1), expected);
}

// A stage that neither warms up nor drains makes its transfers behind a forward and a backward.
TEST(PipelineSchedule, TransfersOfChunksFollowAForwardAndABackward) {
  const PipelineActions actions = stage_schedule({4, 40, 2}, 1);
  std::size_t pairs = 0;
  for (std::size_t i = actions.size() / 4; i < actions.size() * 3 / 4; ++i) {
    if (actions[i].kind != Kind::kForward) continue;
    ++pairs;
    EXPECT_EQ(actions[i + 1].kind, Kind::kBackward) << i;
  }
  EXPECT_GT(pairs, 30u);
}

}  // namespace
}  // namespace neap::step

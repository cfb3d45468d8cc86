#include "report/rollout_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/file.h"
#include "base/text.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Rollout> responses(std::size_t count, const std::string& text) {
  std::vector<Rollout> out;
  for (std::size_t i = 0; i < count; ++i) {
    Rollout rollout;
    rollout.prompt = "What is 6 x 7?";
    rollout.response = text;
    rollout.ground_truth = {"42"};
    rollout.score = static_cast<double>(i);
    rollout.rewards = {{"math", 1}, {"style", std::nan("")}};
    rollout.tokens = 3;
    out.push_back(rollout);
  }
  return out;
}

RolloutLog open_log(const std::filesystem::path& folder, std::optional<std::uint64_t> step,
                    Bytes limit = 1_MiB) {
  auto log = RolloutLog::open(folder, step, limit);
  EXPECT_TRUE(log.ok()) << log.status().message();
  return std::move(log).value();
}

std::vector<std::uint64_t> steps_in(const std::filesystem::path& folder) {
  auto read = read_rollouts(folder, 64_MiB);
  EXPECT_TRUE(read.ok()) << read.status().message();
  std::vector<std::uint64_t> steps;
  for (const StepRollouts& step : *read) steps.push_back(step.step);
  return steps;
}

TEST(RolloutLog, GivesBackWhatItWasGiven) {
  const TemporaryFolder folder;
  RolloutLog log = open_log(folder.path(), std::nullopt);
  ASSERT_TRUE(log.append(1, responses(2, "forty\ntwo \xff")).ok());
  const auto read = read_rollouts(folder.path(), 1_MiB);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].step, 1u);
  EXPECT_TRUE((*read)[0].whole);
  ASSERT_EQ((*read)[0].rollouts.size(), 2u);
  const Rollout& second = (*read)[0].rollouts[1];
  EXPECT_EQ(second.response, "forty\ntwo \xef\xbf\xbd");
  EXPECT_THAT(second.ground_truth, ElementsAre("42"));
  EXPECT_EQ(second.score, 1);
  EXPECT_THAT(second.rewards, ElementsAre(std::pair<std::string, double>("math", 1)));
  EXPECT_EQ(second.tokens, 3);
}

TEST(RolloutLog, AResumedRunHasNoStepTwice) {
  const TemporaryFolder folder;
  {
    RolloutLog log = open_log(folder.path(), 0);
    for (const std::uint64_t step : {1u, 10u, 20u})
      EXPECT_TRUE(log.append(step, responses(3, "x")).ok());
  }
  std::ofstream(folder.path() / kRolloutsFile, std::ios::app) << "{\"step\":30,\"prom";  // killed
  {
    RolloutLog log = open_log(folder.path(), 10);
    EXPECT_THAT(steps_in(folder.path()), ElementsAre(1, 10));
    EXPECT_TRUE(log.append(20, responses(1, "y")).ok());
  }
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(1, 10, 20));
  // From the start, over what a killed run left.
  (void)open_log(folder.path(), 0);
  EXPECT_THAT(steps_in(folder.path()), ElementsAre());
}

TEST(RolloutLog, ATornLastLineIsToldAndHidesNothing) {
  const TemporaryFolder folder;
  EXPECT_TRUE(open_log(folder.path(), 0).append(1, responses(3, "x")).ok());
  std::filesystem::rename(folder.path() / kRolloutsFile, folder.path() / kOlderRolloutsFile);
  EXPECT_TRUE(open_log(folder.path(), 1).append(2, responses(3, "x")).ok());
  std::ofstream(folder.path() / kRolloutsFile, std::ios::app) << "{\"step\":3,\"prom";  // killed
  const auto told =
      HasSubstr("rollouts.jsonl: the last line is incomplete and left out (15 bytes)");
  ::testing::internal::CaptureStderr();
  const auto read = read_rollouts(folder.path(), 1_MiB);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), told);
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), 2u);
  EXPECT_TRUE(read->front().whole);
  ::testing::internal::CaptureStderr();
  (void)open_log(folder.path(), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rollouts.jsonl:4: the last"));
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(1, 2));
}

TEST(RolloutLog, ANewRunRefusesAnotherRunsFolder) {
  const TemporaryFolder folder;
  EXPECT_TRUE(open_log(folder.path(), 0).append(1, responses(1, "x")).ok());
  EXPECT_EQ(RolloutLog::open(folder.path(), std::nullopt, 1_MiB).status().code(),
            ErrorCode::kAlreadyExists);
}

TEST(RolloutLog, StaysUnderItsLimitAndKeepsTheNewest) {
  const TemporaryFolder folder;
  const Bytes limit = 64_KiB;
  RolloutLog log = open_log(folder.path(), 0, limit);
  const std::string text(1000, 'x');
  for (std::uint64_t step = 1; step <= 100; ++step) {
    ASSERT_TRUE(log.append(step, responses(4, text)).ok());
    std::uintmax_t size = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder.path()))
      size += file.file_size();
    ASSERT_LE(size, limit.count());
  }
  const auto steps = steps_in(folder.path());
  EXPECT_GE(steps.size(), 6u);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], 100 - steps.size() + i + 1);
  // Both files are cut where a run resumes.
  (void)open_log(folder.path(), steps.front(), limit);
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(steps.front()));
}

TEST(RolloutLog, ReadsTheNewestInAFewBytes) {
  const TemporaryFolder folder;
  RolloutLog log = open_log(folder.path(), 0);
  for (std::uint64_t step = 1; step <= 9; ++step)
    ASSERT_TRUE(log.append(step, responses(4, "x")).ok());
  const auto read = read_rollouts(folder.path(), Bytes(1000));
  ASSERT_TRUE(read.ok());
  ASSERT_FALSE(read->empty());
  EXPECT_EQ(read->back().step, 9u);
  EXPECT_EQ(read->back().rollouts.size(), 4u);
  EXPECT_FALSE(read->front().whole);
}

TEST(RolloutLog, NamesADamagedLine) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / kRolloutsFile) << "{\"step\":1,\"score\":0}\nnonsense\n";
  const auto log = RolloutLog::open(folder.path(), 5, 1_MiB);
  EXPECT_EQ(log.status().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(log.status().message(), HasSubstr("rollouts.jsonl:2"));
}

TEST(RolloutsText, FitsTheConsole) {
  std::vector<Rollout> all = responses(9, "");
  for (Rollout& rollout : all) {
    rollout.rewards = {{"math", 1}, {"math/acc", 1}, {"length", -0.5}};
    rollout.prompt = std::string(500, 'p');
    for (int i = 0; i < 300; ++i) rollout.response += "\xe6\xbc\xa2\n";  // wide characters
    rollout.response += "END";
  }
  const auto some = some_of(all, 3);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some[0]->score, 8);
  EXPECT_EQ(some[1]->score, 4);
  EXPECT_EQ(some[2]->score, 0);
  const std::string text = rollouts_text(some, 80);
  std::size_t lines = 0;
  for (std::size_t begin = 0; begin < text.size(); ++lines) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(columns_of(std::string_view(text).substr(begin, end - begin)), 80u);
    begin = end + 1;
  }
  EXPECT_LE(lines, 3 * 8u);
  EXPECT_THAT(text, HasSubstr("score 8   math 1   length -0.5   3 tokens\n"));
  EXPECT_THAT(text, HasSubstr("  truth     42\n"));
  EXPECT_THAT(text, HasSubstr("END\n"));
}

}  // namespace
}  // namespace neap::report

// What a run's folder says of memory: the most bytes of tags and of phases' temporaries.
#include "report/run_memory.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/file.h"
#include "report/run_folder.h"
#include "trace/writer.h"
#include "unit/report/synthetic.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

class RunMemoryTest : public ::testing::Test {
 protected:
  void write_plan(const std::string& text) {
    ASSERT_TRUE(write_file_atomic(run_.path() / kPlanFile, text).ok());
  }
  void write_phases() {
    auto log = PhaseLog::open(run_.path(), std::nullopt);
    ASSERT_TRUE(log.ok()) << log.status().message();
    PhaseRecord record;
    for (const auto& [step, phase, reserved] :
         {std::tuple{1U, "generate", 5_MiB}, std::tuple{1U, "train_actor", 20_MiB},
          std::tuple{2U, "generate", 8_MiB}, std::tuple{2U, "train_actor", 12_MiB}}) {
      record.step = step;
      record.phase = phase;
      record.transient_reserved = reserved;
      ASSERT_TRUE(log->append(record).ok());
    }
  }
  static constexpr const char* kPlan =
      R"({"task": "grpo", "capacity": 0, "peak_without_offload": 0, "peak": 0,
          "phases": [{"name": "generate", "persistent": 96, "temporary": 20, "peak": 116}],
          "tags": [{"tag": "actor.weights", "bytes": 67108864}]})";

  TemporaryFolder run_;
};

TEST_F(RunMemoryTest, HasTheMostOfTagsAndTemporaries) {
  write_plan(kPlan);
  write_phases();
  ASSERT_TRUE(trace::write(run_.path() / kTraceFile, SyntheticRun::two_steps().recording).ok());
  const Result<RunMemory> memory = read_run_memory(run_.path());
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_EQ(memory->task, "grpo");
  EXPECT_EQ(memory->planned_tags, (RunMemory::ByName{{"actor.weights", 64_MiB}}));
  EXPECT_EQ(memory->planned_temporaries, (RunMemory::ByName{{"generate", 20_B}}));
  EXPECT_EQ(memory->tags,
            (RunMemory::ByName{
                {"actor.optimizer", 32_MiB}, {"actor.weights", 64_MiB}, {"rollout.kv", 32_MiB}}));
  EXPECT_EQ(memory->temporaries, (RunMemory::ByName{{"generate", 8_MiB}, {"train_actor", 20_MiB}}));
}

TEST_F(RunMemoryTest, WithoutATraceThereAreNoTags) {
  write_plan(kPlan);
  write_phases();
  const Result<RunMemory> memory = read_run_memory(run_.path());
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_TRUE(memory->tags.empty());
  EXPECT_EQ(memory->temporaries.size(), 2U);
  ASSERT_EQ(memory->notes.size(), 1U);
  EXPECT_NE(memory->notes[0].find("has no memory.ntrace"), std::string::npos);
}

TEST_F(RunMemoryTest, OtherFoldersAreNamed) {
  Result<RunMemory> memory = read_run_memory(run_.path());
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.status().message().find("has no plan.json"), std::string::npos);
  write_plan(
      R"({"task": "grpo", "capacity": 0, "peak_without_offload": 0, "peak": 0, "phases": [],
          "tags": [{"tag": "actor.weights"}]})");
  write_phases();
  memory = read_run_memory(run_.path());
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.status().message().find("\"tags\""), std::string::npos);
}

}  // namespace
}  // namespace neap::report

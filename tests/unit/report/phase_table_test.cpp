#include "report/phase_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/move_table.h"

namespace neap::report {
namespace {

using testing::HasSubstr;

Json plan_json() {
  return {{"schema", 1},
          {"capacity", (4_GiB).count()},
          {"peak_without_offload", (9_GiB).count()},
          {"peak", (3_GiB).count()},
          {"phases",
           {{{"name", "generate"},
             {"temporary", (1_GiB).count()},
             {"persistent", (1_GiB).count()},
             {"peak", (2_GiB).count()}},
            {{"name", "train_actor"},
             {"temporary", (2_GiB).count()},
             {"persistent", (1_GiB).count()},
             {"peak", (3_GiB).count()}}}}};
}

std::vector<PhaseRecord> records() {
  PhaseRecord generate{1, "generate", 1_GiB, 512_MiB, 1_GiB, 2_GiB, 256_MiB, 1_GiB, 2.0, 0.25};
  PhaseRecord train{1, "train_actor", 1_GiB, 1_GiB, 2_GiB, 3_GiB, 128_MiB, Bytes(), 4.0, 0};
  PhaseRecord again = generate;
  again.step = 2;
  again.peak = 1536_MiB;
  again.transient_allocated = 1_GiB;
  again.moved = Bytes();
  again.seconds = 1;
  again.move_seconds = 0.75;
  return {generate, train, again};
}

// After a resume with other keys, phases of before were compared with the plan of after.
TEST(PhaseTable, RecordsBelongToThePlanThatTheyRanUnder) {
  std::vector<PhaseRecord> under_two_plans = records();
  for (PhaseRecord& r : under_two_plans) r.planned = r.peak;
  under_two_plans.push_back(under_two_plans[1]);
  under_two_plans.back().step = 3;
  const auto plan = PlanSummary::from_json(plan_json());
  ASSERT_TRUE(plan.ok());
  const PhaseTable table = PhaseTable::from_records(under_two_plans, &*plan);
  ASSERT_EQ(table.rows.size(), 3U);
  EXPECT_EQ(table.rows[0].reserved, 2_GiB);
  EXPECT_EQ(table.rows[2].phase, "generate");
  EXPECT_EQ(table.rows[2].reserved, 1536_MiB);
  const std::string text = table.to_text();
  EXPECT_THAT(text, HasSubstr("steps"));
  EXPECT_THAT(text, HasSubstr("1-3")) << text;
  EXPECT_THAT(text, ::testing::Not(HasSubstr("-25.0 %"))) << text;
  EXPECT_EQ(PhaseTable::from_records(records(), &*plan).rows.size(), 2U);
  for (PhaseRecord& r : under_two_plans) r.planned = plan->find(r.phase)->peak;
  EXPECT_EQ(peak_under(*plan, under_two_plans), 3_GiB);
  under_two_plans[1].planned = under_two_plans[3].planned = 7_GiB;
  EXPECT_EQ(peak_under(*plan, under_two_plans), 2_GiB);
}

TEST(PlanSummary, ReadsThePlan) {
  const auto plan = PlanSummary::from_json(plan_json());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->capacity, 4_GiB);
  ASSERT_NE(plan->find("train_actor"), nullptr);
  EXPECT_EQ(plan->find("train_actor")->peak, 3_GiB);
  EXPECT_EQ(plan->find("nothing"), nullptr);
}

TEST(PlanSummary, NamesWhatIsWrong) {
  Json plan = plan_json();
  plan["phases"][1]["peak"] = "3 GiB";
  EXPECT_THAT(PlanSummary::from_json(plan).status().message(), HasSubstr("phases[1].peak"));
  plan.erase("phases");
  EXPECT_THAT(PlanSummary::from_json(plan).status().message(), HasSubstr("\"phases\""));
  EXPECT_THAT(PlanSummary::from_json(Json(3)).status().message(), HasSubstr("capacity"));
}

TEST(PhaseTable, OneRowAPhase) {
  const auto plan = PlanSummary::from_json(plan_json());
  ASSERT_TRUE(plan.ok());
  const auto all = records();
  const PhaseTable table = PhaseTable::from_records(all, &*plan);
  EXPECT_EQ(table.to_text(),
            "phase        times  planned  vs plan  reserved  allocated  fragmentation    moved  "
            "seconds\n"
            "generate         2    2 GiB   +0.0 %     2 GiB      2 GiB        256 MiB  512 MiB    "
            "2.000\n"
            "train_actor      1    3 GiB   +0.0 %     3 GiB      2 GiB        128 MiB      0 B    "
            "4.000\n");
  EXPECT_THAT(table.to_markdown(), HasSubstr("| phase | times | planned | vs plan |"));
  EXPECT_THAT(table.to_markdown(), HasSubstr("|---|---:|"));
  EXPECT_EQ(table.to_json()[0]["moved"], (512_MiB).count());
  EXPECT_EQ(table.to_json()[0]["seconds"], 1.5);
  EXPECT_EQ(table.to_json()[1]["planned"], (3_GiB).count());
}

TEST(PhaseTable, WithoutAPlanTheColumnsGo) {
  const auto all = records();
  const PhaseTable table = PhaseTable::from_records(all);
  EXPECT_THAT(table.to_text(), testing::Not(HasSubstr("planned")));
  EXPECT_TRUE(table.to_json()[0]["planned"].is_null());
}

TEST(MemoryLines, FourLines) {
  const MemoryLines lines{9_GiB, 4_GiB, 2970_MiB, 3_GiB};
  EXPECT_EQ(lines.to_text(),
            "no offloading  9 GiB\n"
            "ceiling        4 GiB\n"
            "measured peak  2.90 GiB  (-3.3 % of planned)\n"
            "planned peak   3 GiB\n");
  EXPECT_THAT((MemoryLines{9_GiB, Bytes(), 1_GiB, 1_GiB}).to_text(),
              HasSubstr("ceiling        none"));
}

TEST(MoveTable, OneRowAMoveOfAPhaseWithItsMeans) {
  PhaseRecord first;
  first.phase = "generate";
  first.moves = {{"pause", "rollout.kv", Bytes(), 0, 0.5},
                 {"resume", "reward.weights", 4_MiB, 0.5, 0.25, true},
                 {"pause", "actor.optimizer", 6_MiB, 2, 2}};
  PhaseRecord second = first;
  second.moves[1].visible_seconds = 0.75;
  second.moves.pop_back();
  first.streamed = {{"actor.prefetch", "weights", 6_MiB, 2_MiB, 0.5}};
  second.streamed = {{"actor.prefetch", "weights", 4_MiB, 4_MiB, 0.25},
                     {"actor.prefetch", "inputs", 2_MiB, 1_MiB, 0}};
  const std::vector<PhaseRecord> records = {first, second};
  const MoveTable table = MoveTable::from_records(records);
  ASSERT_EQ(table.rows.size(), 4U) << "what copies nothing is left out";
  EXPECT_EQ(table.rows[0].tag, "reward.weights");
  EXPECT_EQ(table.rows[0].times, 2U);
  EXPECT_EQ(table.rows[0].copied, 4_MiB);
  EXPECT_EQ(table.rows[0].copy_seconds, 0.5);
  EXPECT_EQ(table.rows[0].visible_seconds, 0.5);
  EXPECT_EQ(table.rows[1].times, 1U);
  EXPECT_EQ(table.rows[2].tag, "actor.prefetch weights");
  EXPECT_EQ(table.rows[2].copied, 8_MiB);
  EXPECT_EQ(table.rows[2].visible_seconds, 0.375);
  EXPECT_FALSE(table.rows[2].copy_seconds.has_value());
  EXPECT_EQ(table.rows[3].times, 1U);
  EXPECT_EQ(table.to_json()[0]["when"], "overlapped");
  EXPECT_EQ(table.to_json()[2]["when"], "within");
  EXPECT_TRUE(table.to_json()[2]["copy_seconds"].is_null());
  EXPECT_THAT(table.to_text(),
              HasSubstr("generate  overlapped  resume          reward.weights      2   4 MiB"));
  EXPECT_TRUE(MoveTable::from_records({}).to_text().empty());
}

}  // namespace
}  // namespace neap::report

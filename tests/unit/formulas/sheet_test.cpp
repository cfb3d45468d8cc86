// What a sheet says of jobs that Neap plans.
#include "formulas/sheet.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

namespace neap::formulas {
namespace {

const std::filesystem::path kPlans =
    std::filesystem::path(NEAP_SOURCE_DIR) / "tests" / "golden" / "plan";

JobSizes sizes_of(const char* name, const std::vector<std::string>& overrides = {}) {
  spec::Job job;
  const Status loaded = spec::Job::load(kPlans / name, overrides, job);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  plan::Target target;
  target.cuda = target.own_kernels = job.device.kind == "cuda";
  target.capacity = 1_GiB;  // does not count
  Result<JobSizes> sizes = read_sizes(job, target);
  EXPECT_TRUE(sizes.ok()) << sizes.status().message();
  return std::move(sizes).value();
}
Sheet sheet_of(const JobSizes& sizes, const Degrees& degrees = {}) {
  Result<Sheet> sheet = make_sheet(sizes, degrees);
  EXPECT_TRUE(sheet.ok()) << sheet.status().message();
  return std::move(sheet).value();
}
double bytes_of(const JobSizes& sizes, const char* tag) {
  for (const plan::TagPlan& t : sizes.plan.tags)
    if (t.name() == tag) return static_cast<double>(t.bytes.count());
  return -1;
}

TEST(Sheet, CountsAreThePlansTags) {
  const JobSizes sizes = sizes_of("qwen7b_grpo.toml");
  const Sheet sheet = sheet_of(sizes);
  const std::vector<std::pair<const char*, const char*>> lines = {
      {"actor.weights", "actor.weights"},     {"actor.gradients", "actor.grads"},
      {"actor.optimizer", "actor.optimizer"}, {"reference.weights", "reference.weights"},
      {"reward.weights", "reward.weights"},   {"rollout.kv", "rollout.kv"},
      {"rank.gradients", "actor.grads"},      {"rank.kv", "rollout.kv"}};
  for (const auto& [line, tag] : lines) {
    ASSERT_NE(sheet.find(line), nullptr) << line;
    EXPECT_EQ(sheet.find(line)->counted, bytes_of(sizes, tag)) << line;
  }
  EXPECT_EQ(sheet.find("rank.weights")->counted, bytes_of(sizes, "actor.weights") +
                                                     bytes_of(sizes, "reference.weights") +
                                                     bytes_of(sizes, "reward.weights"));
  // 28 heads share the keys and values of 4, so the formula has 7 times as many.
  EXPECT_DOUBLE_EQ(sheet.find("rollout.kv")->value, 7 * bytes_of(sizes, "rollout.kv"));
  EXPECT_NE(sheet.find("rollout.kv")->why.find("28 heads share"), std::string::npos);
}

TEST(Sheet, ACacheInPagesHasTheirTokens) {
  const JobSizes sizes =
      sizes_of("qwen7b_grpo.toml", {"actor_rollout_ref.rollout.max_total_tokens=12800"});
  const Sheet sheet = sheet_of(sizes);
  const Line* const line = sheet.find("rollout.kv");
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(line->term, "201 pages of 64 tokens");
  EXPECT_EQ(line->formula, "2 w c l h");
  EXPECT_NEAR(line->value, 7 * bytes_of(sizes, "rollout.kv"), 0.01 * line->value);
}

TEST(Sheet, TheCeilingDoesNotChangeCounts) {
  const JobSizes sizes = sizes_of("opt_ppo_streamed.toml", {"memory.optimizer_offload=none"});
  EXPECT_TRUE(sizes.plan.fits());
  EXPECT_TRUE(sizes.plan.moved_per_step.is_zero());
}

TEST(Sheet, DifferencesHaveReasons) {
  for (const char* name :
       {"opt_ppo.toml", "opt_lora_ppo.toml", "qwen7b_ppo.toml", "qwen7b_grpo.toml",
        "qwen7b_sft.toml", "qwen7b_dpo.toml", "qwen15_sft.toml", "opt350_reward_host.toml"}) {
    const Sheet sheet = sheet_of(sizes_of(name));
    for (const Section& section : sheet.sections)
      for (const Line& line : section.lines) {
        if (!line.counted) continue;
        EXPECT_EQ(line.why.empty(), !differs(line.value, *line.counted)) << name << " " << line.id;
        // Rounding of regions alone explains little.
        if (line.why == "regions are rounded up to pages") {
          EXPECT_LT(*line.counted / line.value, 1.05) << name << " " << line.id;
          EXPECT_GT(*line.counted / line.value, 1) << name << " " << line.id;
        }
      }
  }
}

TEST(Sheet, TheActivationOfGateIsNamedWhereItIsKept) {
  const auto named = [](std::vector<std::string> overrides) {
    overrides.emplace_back("actor_rollout_ref.model.enable_gradient_checkpointing=false");
    overrides.emplace_back("actor_rollout_ref.model.activation_checkpointing=none");
    const Sheet sheet = sheet_of(sizes_of("qwen7b_sft.toml", overrides));
    std::size_t with = 0, without = 0;
    for (const Section& section : sheet.sections)
      for (const Line& line : section.lines) {
        with += line.why.find("gate, up, act(gate) and product") != std::string::npos;
        without += line.why.find("gate, up and product") != std::string::npos;
      }
    return std::pair(with > 0, without > 0);
  };
  EXPECT_EQ(named({}), std::pair(false, true)) << "one kernel computes the product";
  EXPECT_EQ(named({"device.kernels=libtorch"}), std::pair(true, false));
}

TEST(Sheet, WhatIsDividedIsNotCounted) {
  const JobSizes sizes = sizes_of("qwen15_sft.toml");
  for (const Degrees& degrees :
       {Degrees{.tensor = 2}, Degrees{.pipeline = 2}, Degrees{.data = 2, .zero = 1}}) {
    const Sheet sheet = sheet_of(sizes, degrees);
    for (const char* id : {"rank.weights", "rank.optimizer", "rank.activations", "rank.total"}) {
      EXPECT_FALSE(sheet.find(id)->counted.has_value()) << id;
    }
  }
  // Data parallelism alone is what ranks do.
  const Sheet sheet = sheet_of(sizes, {.data = 8});
  EXPECT_TRUE(sheet.find("rank.total")->counted.has_value());
}

TEST(Sheet, DivisionsCompose) {
  const JobSizes sizes = sizes_of("qwen15_sft.toml");
  const double n = sizes.models.front().parameters.sum();
  const auto value = [&](const Degrees& degrees, const char* id) {
    return sheet_of(sizes, degrees).find(id)->value;
  };
  EXPECT_DOUBLE_EQ(value({}, "rank.states"), 16 * n);
  EXPECT_DOUBLE_EQ(value({.tensor = 4}, "rank.states"), 4 * n);
  EXPECT_DOUBLE_EQ(value({.data = 4, .zero = 3}, "rank.states"), 4 * n);
  EXPECT_DOUBLE_EQ(value({.tensor = 2, .data = 4, .zero = 1}, "rank.states"),
                   (4 * n + 12 * n / 4) / 2);
  // Two stages: half of the layers and the whole table, which this model's head shares.
  const CountedParameters& p = sizes.models.front().parameters;
  EXPECT_DOUBLE_EQ(value({.pipeline = 2}, "rank.weights"), 2 * (p.layers() / 2 + p.embedding));
}

// Formulas as they are printed, with the factor that belongs to the value.
TEST(Sheet, FormulasAreOfTheActivationsType) {
  for (const auto& [name, factor, none, selective, full] :
       {std::tuple{"qwen15_sft.toml", 1, "s b h (34 + 5 a s / h)", "34 s b h", "2 s b h"},
        std::tuple{"opt350_reward_host.toml", 2, "2 s b h (34 + 5 a s / h)", "68 s b h",
                   "4 s b h"}}) {
    const JobSizes sizes = sizes_of(name);
    const ModelSizes& model = *sizes.trained();
    const Sheet sheet = sheet_of(sizes);
    const double sbh = model.batch.length * model.batch.sequences * model.letters.hidden;
    const auto line = [&](const char* id) { return sheet.find(model.role.name() + id); };
    EXPECT_EQ(line(".layer_none")->formula, none);
    EXPECT_EQ(line(".layer_selective")->formula, selective);
    EXPECT_DOUBLE_EQ(line(".layer_selective")->value, 34 * factor * sbh);
    EXPECT_EQ(line(".layer_full")->formula, full);
    EXPECT_DOUBLE_EQ(line(".layer_full")->value, 2 * factor * sbh);
  }
}

TEST(Sheet, TheTableByRanksSaysWhatNIs) {
  const JobSizes sizes = sizes_of("qwen15_sft.toml");
  EXPECT_EQ(to_text(sheet_of(sizes), Scale::kGb).find("N: a rank's part"), std::string::npos);
  const std::string divided = to_text(sheet_of(sizes, {.tensor = 2}), Scale::kGb);
  EXPECT_NE(divided.find("N: a rank's part by t and p"), std::string::npos);
}

TEST(Sheet, AdaptersAloneTrain) {
  const JobSizes sizes = sizes_of("opt_lora_ppo.toml");
  const ModelSizes& actor = sizes.models.front();
  const Sheet sheet = sheet_of(sizes);
  ASSERT_GT(actor.adapter, 0);
  EXPECT_DOUBLE_EQ(sheet.find("actor.optimizer")->value, 12 * actor.adapter);
  EXPECT_DOUBLE_EQ(sheet.find("actor.weights")->value, 2 * actor.parameters.sum());
  EXPECT_EQ(sheet.find("actor.optimizer")->formula, "K N_t");
  EXPECT_EQ(sheet.by_ranks.rows[1].formula, "2 N + 2 N_t + 12 N_t / d");
}

TEST(Sheet, StatesByRanksAreTheStagesFormulas) {
  const JobSizes sizes = sizes_of("qwen15_sft.toml");
  const double n = sizes.models.front().parameters.sum();
  const Sheet sheet = sheet_of(sizes);
  ASSERT_EQ(sheet.by_ranks.ranks.size(), 11U);
  ASSERT_EQ(sheet.by_ranks.rows.size(), 11U);  // with 16-bit and with float32 gradients; as planned
  EXPECT_EQ(sheet.by_ranks.rows[8].term, "ZeRO-1, counted");
  EXPECT_EQ(sheet.by_ranks.rows[9].term, "ZeRO-2, counted");
  EXPECT_EQ(sheet.by_ranks.rows[10].term, "ZeRO-3, counted");
  for (std::size_t i = 0; i < sheet.by_ranks.ranks.size(); ++i) {
    const auto d = static_cast<double>(sheet.by_ranks.ranks[i]);
    const std::vector<double> expected = {
        16 * n, 4 * n + 12 * n / d, 2 * n + 14 * n / d, 16 * n / d,
        18 * n, 6 * n + 12 * n / d, 2 * n + 16 * n / d, 18 * n / d};
    for (std::size_t row = 0; row < expected.size(); ++row)
      EXPECT_NEAR(sheet.by_ranks.rows[row].bytes[i] / expected[row], 1, 1e-12);
    // Regions of weights and gradients are whole pages; a slice has up to a tile more than its share.
    EXPECT_NEAR(sheet.by_ranks.rows[8].bytes[i] / expected[5], 1, 0.015);
    EXPECT_NEAR(sheet.by_ranks.rows[9].bytes[i] / expected[6], 1, 0.025);
    // Of many ranks a tile is more than the share.
    EXPECT_GE(sheet.by_ranks.rows[10].bytes[i] / expected[7], 0.999);
    if (d <= 16) {
      EXPECT_NEAR(sheet.by_ranks.rows[10].bytes[i] / expected[7], 1, 0.05);
    }
  }
}

TEST(Sheet, JsonHasWhatTextHas) {
  const JobSizes sizes = sizes_of("qwen15_sft.toml");
  Sheet sheet = sheet_of(sizes, {.tensor = 2});
  sheet.find("rank.weights")->published = Published{1e9, 1e8, "chosen"};
  const Json json = to_json(sheet);
  std::size_t lines = 0;
  for (const Json& section : json["sections"]) {
    for (const Json& line : section["lines"]) {
      ++lines;
      const Line* of = sheet.find(line["id"].get<std::string>());
      ASSERT_NE(of, nullptr);
      EXPECT_EQ(line["value"], of->value);
      EXPECT_EQ(line["counted"].is_null(), !of->counted.has_value());
      EXPECT_EQ(line.contains("published"), of->id == "rank.weights");
    }
  }
  std::size_t expected = 0;
  for (const Section& section : sheet.sections) expected += section.lines.size();
  EXPECT_EQ(lines, expected);
  EXPECT_EQ(json["states_by_ranks"]["rows"].size(), sheet.by_ranks.rows.size());
}

TEST(Sheet, PublishedValuesAgreeWithinTheirLastDigit) {
  EXPECT_TRUE((Published{30, 1, ""}.agrees(30.49)));
  EXPECT_FALSE((Published{30, 1, ""}.agrees(30.51)));
  EXPECT_TRUE((Published{17600, 100, ""}.agrees(17627)));
  EXPECT_FALSE((Published{17600, 10, ""}.agrees(17627)));
}

TEST(Sheet, RanksAreDividedByTheDegrees) {
  const JobSizes sizes =
      sizes_of("qwen7b_grpo.toml", {"trainer.n_gpus_per_node=8", "trainer.nnodes=1"});
  ASSERT_EQ(sizes.ranks, 8);
  const auto ranks = [&](const Degrees& degrees) { return sheet_of(sizes, degrees).letters; };
  EXPECT_NE(ranks({.data = 0}).find("d = 8"), std::string::npos);
  EXPECT_NE(ranks({.tensor = 2, .pipeline = 2, .data = 0}).find("d = 2"), std::string::npos);
  EXPECT_NE(ranks({.tensor = 2, .data = 3}).find("d = 3"), std::string::npos);
  const Result<Sheet> sheet = make_sheet(sizes, {.tensor = 3, .data = 0});
  ASSERT_FALSE(sheet.ok());
  EXPECT_NE(sheet.status().message().find("8 ranks are no multiple of 3"), std::string::npos);
}

TEST(Sheet, AnEvaluationTrainsNothing) {
  const Sheet sheet = sheet_of(sizes_of("qwen7b_grpo.toml", {"task=eval"}));
  EXPECT_EQ(sheet.find("rank.total"), nullptr);
  EXPECT_EQ(sheet.find("actor.optimizer"), nullptr);
  EXPECT_TRUE(sheet.by_ranks.rows.empty());
  EXPECT_TRUE(sheet.find("rank.generation")->counted.has_value());
}

TEST(Sheet, DegreesAreChecked) {
  const Result<Sheet> sheet = make_sheet(sizes_of("qwen15_sft.toml"), {.pipeline = 29});
  ASSERT_FALSE(sheet.ok());
  EXPECT_NE(sheet.status().message().find("28 layers"), std::string::npos);
}

}  // namespace
}  // namespace neap::formulas

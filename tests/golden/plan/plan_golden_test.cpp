// Whole plans of whole configurations. NEAP_UPDATE_GOLDEN=1 writes the expected files anew; read
// the difference before committing it.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "golden/compare_file.h"
#include "plan/advice.h"
#include "plan/memory_plan.h"
#include "plan/tunables.h"
#include "spec/config_docs.h"
#include "spec/peer_keys.h"
#include "unit/plan/gpt_activations.h"

namespace neap::plan {
namespace {

using testing::compare_file;

namespace fields = spec::job_fields;

constexpr const char* kResidentWeights = R"(memory.allow=["recompute","move","stream"])";

template <class T>
bool changes_any(const std::vector<spec::JobChange>& changes, spec::JobField<T> field) {
  return std::any_of(changes.begin(), changes.end(), [&](const spec::JobChange& change) {
    return change.value_of(field) != nullptr;
  });
}

const std::filesystem::path kFolder =
    std::filesystem::path(NEAP_SOURCE_DIR) / "tests" / "golden" / "plan";

Target target_of(const spec::Job& job) {
  Target target;
  target.cuda = job.device.kind == "cuda";
  target.capacity = job.device.memory;
  target.threads = 2;
  return target;
}

// The readable plan, and its numbers to the byte.
std::string describe(const MemoryPlan& plan) {
  std::string text = plan.to_text() + "\nbytes\n";
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    text +=
        format("  {}: persistent {}, transient {}, allocated {}, peak {}\n", plan.phases[p].name(),
               plan.schedule[p].persistent.count(), plan.phases[p].transient.count(),
               plan.phases[p].transient_allocated.count(), plan.schedule[p].peak.count());
  }
  for (const TagPlan& tag : plan.tags)
    text += format("  {}: {} in {} regions\n", tag.name(), tag.bytes.count(), tag.regions.size());
  return text;
}

struct Golden {
  friend void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }
  const char* name;  ///< of the expected file, NAME.txt
  std::filesystem::path config;
  std::vector<std::string> overrides;
};
Golden here(const char* name) {
  return {name, kFolder / (std::string(name) + ".toml"), {}};
}
// The demo's own files; untrained, all models have the shape of the first.
Golden reviews(const char* name, const char* stage, std::vector<std::string> overrides) {
  return {name,
          std::filesystem::path(NEAP_SOURCE_DIR) / "examples" / "reviews" /
              (std::string(stage) + ".toml"),
          std::move(overrides)};
}

class GoldenPlan : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenPlan, IsAsWritten) {
  spec::Job job;
  const Status loaded = spec::Job::load(GetParam().config, GetParam().overrides, job);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  const Result<MemoryPlan> plan = make_plan(job, target_of(job));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  compare_file(kFolder / (std::string(GetParam().name) + ".txt"), describe(*plan));

  // What every plan owes, whatever its numbers.
  EXPECT_TRUE(plan->fits());
  Bytes moved;
  for (std::size_t p = 0; p < plan->phases.size(); ++p) {
    EXPECT_LE(plan->phases[p].transient_allocated, plan->phases[p].transient);
    const auto times = static_cast<std::uint64_t>(plan->phases[p].times);
    moved += plan->phases[p].fetched + plan->phases[p].stored;
    for (const Move& m : plan->schedule[p].moves) moved += m.copies ? m.bytes : Bytes();
    for (const Move& m : plan->schedule[p].again)
      moved += m.copies ? m.bytes * (times - 1) : Bytes();
  }
  EXPECT_EQ(moved, plan->moved_per_step);
  for (const TagPlan& tag : plan->tags) {
    Bytes requested, sum;
    for (const RegionPlan& region : tag.regions) {
      Bytes end;
      for (const PartPlan& part : region.parts) {
        EXPECT_TRUE(is_multiple_of(part.offset, kPartAlignment));
        EXPECT_GE(part.offset, end);
        end = part.offset + part.bytes;
      }
      EXPECT_EQ(end, region.bytes);
      requested += region.bytes;
      sum += round_up(region.bytes, plan->granularity);
    }
    if (tag.is_outside()) continue;
    EXPECT_EQ(sum, tag.bytes);
    // Rounding costs at most a granule, or a thirty-second.
    EXPECT_LE((sum - requested).count(),
              std::max(plan->granularity.count(), requested.count() / 32 + 1))
        << tag.name();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, GoldenPlan,
    ::testing::Values(
        here("opt_ppo"), here("opt_ppo_streamed"), here("opt_lora_ppo"), here("qwen7b_ppo"),
        here("qwen7b_grpo"), here("qwen7b_sft"), here("qwen7b_dpo"), here("qwen15_sft"),
        here("qwen15_sft_two_ranks"), here("opt350_reward_host"), reviews("reviews_sft", "sft", {}),
        reviews("reviews_reward", "reward", {"actor_rollout_ref.model.path=model"}),
        reviews("reviews_ppo", "ppo",
                {"actor_rollout_ref.model.path=model", "critic.model.path=model",
                 "reward_model.model.path=model"}),
        reviews("reviews_grpo", "grpo",
                {"actor_rollout_ref.model.path=model", "reward_model.model.path=model"})),
    [](const auto& test) { return std::string(test.param.name); });

// Folders with weights, though empty ones, and the shapes of models here.
class WithWeights {
 public:
  WithWeights() {
    for (const char* model : {"opt13", "opt350"}) {
      const std::filesystem::path to = folder_ / model;
      std::filesystem::create_directories(to);
      std::filesystem::copy_file(kFolder / "models" / model / "config.json", to / "config.json",
                                 std::filesystem::copy_options::overwrite_existing);
      std::ofstream(to / spec::kModelWeights) << "";
    }
  }
  ~WithWeights() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::vector<std::string> paths() const {
    return {"actor_rollout_ref.model.path=" + (folder_ / "opt13").string(),
            "critic.model.path=" + (folder_ / "opt350").string()};
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / format("neap-plan-{}", ::getpid());
};

TEST(GoldenPlans, TighterCeilingsMoveMoreAndThenFailWithAdvice) {
  const WithWeights weights;
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", weights.paths(), job).ok());
  Target target = target_of(job);
  double before = 0;
  bool failed = false;
  int fitted = 0;
  for (std::uint64_t gib = 60; gib >= 5; gib -= 5) {
    target.capacity = Bytes(gib << 30);
    const Result<MemoryPlan> plan = make_plan(job, target);
    if (plan.ok()) {
      EXPECT_FALSE(failed) << "fits below a size that does not";
      EXPECT_GE(plan->waiting_seconds(), before);
      before = plan->waiting_seconds();
      ++fitted;
      continue;
    }
    failed = true;
    EXPECT_EQ(plan.status().code(), ErrorCode::kDoesNotFit);
    EXPECT_NE(plan.status().message().find("the least capacity is"), std::string::npos);
    EXPECT_NE(plan.status().message().find("rollout.batch_size=4: fits in "), std::string::npos)
        << plan.status().message();
  }
  EXPECT_TRUE(failed);
  EXPECT_GE(fitted, 3);
  EXPECT_GT(before, 0);
}

// The size in `text` behind `before`.
std::optional<Bytes> size_behind(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + before.size();
  const std::size_t end = text.find_first_not_of("0123456789. ", begin);
  const Result<Bytes> size = parse_bytes(text.substr(begin, text.find('B', end) + 1 - begin));
  return size.ok() ? std::optional(*size) : std::nullopt;
}

TEST(GoldenPlans, TheLeastCapacityThatARefusalNamesDoesAndALittleLessDoesNot) {
  const struct {
    const char* config;
    std::vector<std::string> overrides;
  } jobs[] = {{"qwen15_sft.toml", {}},
              {"qwen15_sft.toml", {"memory.allow=[]"}},
              {"qwen15_sft.toml", {"memory.allow=[\"stream\",\"micro_batch\"]"}},
              {"opt_ppo.toml", {}},
              {"opt_ppo.toml", {"memory.host_budget=6GiB"}},
              {"opt_ppo.toml", {"memory.update=streamed", "memory.host_budget=4GiB"}},
              {"qwen7b_sft.toml", {"memory.update=joined"}}};
  for (const auto& [config, overrides] : jobs) {
    SCOPED_TRACE(config + (overrides.empty() ? "" : " " + overrides.front()));
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / config, overrides, job).ok());
    Target target = target_of(job);
    std::optional<Bytes> named;
    Bytes asked = 1_GiB;
    for (int i = 0; i < 4; ++i) {
      target.capacity = asked;
      const Result<MemoryPlan> plan = make_plan(job, target);
      ASSERT_FALSE(plan.ok()) << to_string(asked);
      const std::string text = plan.status().message();
      if (text.find("no capacity is enough") != std::string::npos) break;
      std::optional<Bytes> least = size_behind(text, "the least capacity is ");
      ASSERT_TRUE(least.has_value()) << text;
      // The same, whatever was asked for.
      EXPECT_EQ(named.value_or(*least), *least) << text;
      named = least;
      target.capacity = *least;
      EXPECT_TRUE(make_plan(job, target).ok()) << to_string(*least);
      asked = *least / 100 * (97 + static_cast<std::uint64_t>(i)) - 20_MiB;
    }
  }
}

TEST(GoldenPlans, TheLeastCapacityIsThatOfTheJobsOwnSettings) {
  for (const char* setting : {"memory.residency=all", "memory.allow=[]", "memory.residency=auto"}) {
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {setting}, job).ok());
    Target target = target_of(job);
    target.capacity = 200_GiB;
    const Bytes least = make_plan_with_outlook(job, target)->outlook.least_capacity;
    target.capacity = least;
    const Result<MemoryPlan> plan = make_plan(job, target);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->fits()) << setting;
    target.capacity = least - 1_B;
    const Result<MemoryPlan> less = make_plan(job, target);
    EXPECT_FALSE(less.ok() && less->fits()) << setting;
  }
  // What would do is said.
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {"memory.allow=[]"}, job).ok());
  Target target = target_of(job);
  target.capacity = 20_GiB;
  const std::string refusal = make_plan(job, target).status().message();
  const std::string looser = "'memory.allow=[\"move\",\"stream\",\"stream_weights\"]': fits in ";
  const std::optional<Bytes> from = size_behind(refusal, looser);
  ASSERT_TRUE(from.has_value()) << refusal;
  target.capacity = *from;
  job.memory.allow = {spec::Measure::kMove, spec::Measure::kStream, spec::Measure::kStreamWeights};
  EXPECT_TRUE(make_plan(job, target).ok());
  job.memory.residency = spec::Residency::kAll;
  EXPECT_NE(knobs_text(job, target).find("memory.residency=auto: fits in "), std::string::npos)
      << knobs_text(job, target);
}

TEST(GoldenPlans, AdviceThatDoesNotFitIsToldApartAndComesLast) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "qwen15_sft.toml", {"memory.allow=[]"}, job).ok());
  Target target = target_of(job);
  bool both = false;
  for (const std::uint64_t gib : {16U, 30U}) {
    target.capacity = Bytes(gib << 30);
    const Result<MemoryPlan> plan = make_plan(job, target);
    ASSERT_FALSE(plan.ok());
    const std::string text = plan.status().message();
    bool over = false;
    for (const Suggestion& knob : find_knobs(job, target)) {
      const bool fits = knob.min_capacity <= target.capacity;
      EXPECT_FALSE(fits && over) << text;
      over = over || !fits;
      // No weights are there, and adapters are not trained on random ones.
      EXPECT_FALSE(changes_any(knob.changes, fields::lora_rank(spec::ModelId::kActor)));
      spec::Job changed = job;
      spec::apply(knob.changes, changed);
      ASSERT_TRUE(changed.validate().ok());
      Target there = target;
      there.capacity = knob.min_capacity;
      EXPECT_TRUE(make_plan(changed, there).ok()) << spec::assignments(knob.changes).front();
    }
    both = both || (text.find("fits in") != std::string::npos &&
                    text.find(": needs ") != std::string::npos);
  }
  EXPECT_TRUE(both);
}

TEST(GoldenPlans, ExactSettingsGoAllTheWayDownBeforeTheTrainingChanges) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "qwen7b_grpo.toml",
                              {"actor_rollout_ref.rollout.n=16", "data.train_batch_size=1024",
                               "actor_rollout_ref.actor.ppo_mini_batch_size=256",
                               "data.max_prompt_length=512", "data.max_response_length=8192"},
                              job)
                  .ok());
  Target target = target_of(job);
  target.capacity = 80_GiB;
  const auto plans = find_fit(job, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  EXPECT_FALSE(changes_any(plans->front().changes, fields::kResponseLength));
}

// Whether the weights are downloaded yet or not.
TEST(GoldenPlans, AdaptersAreTriedOnAFolderWithTheConfigurationAlone) {
  spec::Job job;
  ASSERT_TRUE(
      spec::Job::load(NEAP_SOURCE_DIR "/examples/gsm8k/qwen2.5-1.5b.toml", {kResidentWeights}, job)
          .ok());
  Target target = target_of(job);
  target.capacity = 8_GiB;
  const auto plans = find_fit(job, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  const std::vector<spec::JobChange>& changes = plans->front().changes;
  const spec::JobChange adapter(fields::lora_rank(spec::ModelId::kActor), 16);
  EXPECT_NE(std::find(changes.begin(), changes.end(), adapter), changes.end());
}

TEST(GoldenPlans, UpdatesAreDividedWhereThatFitsAndNotElsewhere) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  std::map<spec::UpdateMode, Bytes> least;
  for (const spec::UpdateMode mode :
       {spec::UpdateMode::kJoined, spec::UpdateMode::kSplit, spec::UpdateMode::kStreamed}) {
    job.memory.update = {false, mode};
    const Result<Bytes> found = least_capacity(job, target);
    ASSERT_TRUE(found.ok()) << found.status().message();
    least[mode] = *found;
    target.capacity = *found;
    const Result<MemoryPlan> plan = make_plan(job, target);
    ASSERT_TRUE(plan.ok()) << to_string(mode) << ": " << plan.status().message();
    EXPECT_LE(plan->peak, target.capacity);
    for (const spec::ModelId model : spec::describe(job).trained())
      EXPECT_EQ(plan->modes.of(model), mode);
  }
  EXPECT_LT(least[spec::UpdateMode::kSplit], least[spec::UpdateMode::kJoined]);
  EXPECT_LT(least[spec::UpdateMode::kStreamed], least[spec::UpdateMode::kSplit] / 2);
  job.memory.update = {};
  EXPECT_EQ(*least_capacity(job, target), least[spec::UpdateMode::kStreamed]);
  // Where everything fits, nothing is divided.
  target.capacity = 48_GiB;
  EXPECT_EQ(make_plan(job, target)->modes, spec::ModelModes());
}

// What a plan says about the job can be pasted, and gives the plan.
void expect_overrides_give(const std::string& config, std::vector<std::string> overrides,
                           const MemoryPlan& plan) {
  for (std::string& assignment : spec::assignments(plan.changes))
    overrides.push_back(std::move(assignment));
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / config, overrides, job).ok());
  Target target = target_of(job);
  target.capacity = plan.capacity;
  const Result<MemoryPlan> again = make_plan(job, target);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->peak, plan.peak);
  EXPECT_NEAR(again->seconds(), plan.seconds(), 1e-9 * plan.seconds());
}

TEST(GoldenPlans, FitRanksPlansThatFit) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  for (const Bytes size : {9_GiB + 512_MiB, 24_GiB}) {
    target.capacity = size;
    const auto plans = find_fit(job, target);
    ASSERT_TRUE(plans.ok()) << plans.status().message();
    EXPECT_EQ(plans->size(), 3U);
    for (std::size_t i = 0; i < plans->size(); ++i) {
      const MemoryPlan& plan = (*plans)[i];
      EXPECT_LE(plan.peak, size);
      if (i > 0) {
        EXPECT_GE(plan.seconds(), (*plans)[i - 1].seconds());
        EXPECT_LT(plan.peak, (*plans)[i - 1].peak);
      }
      EXPECT_FALSE(changes_any(plan.changes, fields::kResponseLength));
      for (const spec::ModelId model : {spec::ModelId::kActor, spec::ModelId::kCritic}) {
        EXPECT_FALSE(changes_any(plan.changes, fields::lora_rank(model)));
        EXPECT_FALSE(changes_any(plan.changes, fields::state_dtype(model)));
      }
      expect_overrides_give("opt_ppo.toml", {}, plan);
    }
  }
  target.capacity = 5_GiB + 512_MiB;
  EXPECT_FALSE(make_plan(job, target).ok());
  EXPECT_FALSE(find_fit(job, target)->front().changes.empty());
  target.capacity = 100_MiB;
  EXPECT_EQ(find_fit(job, target).status().code(), ErrorCode::kDoesNotFit);
}

TEST(GoldenPlans, NarrowGradientsAndMastersArePlanned) {
  Bytes wide;
  for (const char* type : {"float32", "bfloat16"}) {
    spec::Job job;
    const std::string at = "actor_rollout_ref.actor.optim.";
    ASSERT_TRUE(spec::Job::load(kFolder / "qwen15_sft.toml",
                                {"device.dtype=bfloat16", at + "gradient_dtype=" + type,
                                 at + "master_dtype=" + type},
                                job)
                    .ok());
    const auto plan = make_plan(job, target_of(job));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    if (!wide.is_zero()) {
      EXPECT_LT(plan->peak, wide);
    }
    wide = plan->peak;
  }
}

TEST(GoldenPlans, HostMemoryThatLacksIsNamed) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  target.capacity = 20_GiB;
  const auto free = make_plan(job, target);
  ASSERT_TRUE(free.ok()) << free.status().message();
  ASSERT_GT(free->host_bytes, 4_GiB);
  target.host_memory = free->host_bytes;
  const auto enough = make_plan(job, target);
  ASSERT_TRUE(enough.ok()) << enough.status().message();
  EXPECT_EQ(enough->host_budget, free->host_bytes);
  EXPECT_LE(enough->host_bytes, free->host_bytes);
  target.host_memory = 1_GiB;
  const Status refused = make_plan(job, target).status();
  EXPECT_EQ(refused.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(refused.message().find("host budget of 1 GiB"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("under 20 GiB"), std::string::npos) << refused.message();
  // A key says more than what is free.
  job.memory.host_budget = free->host_bytes;
  EXPECT_TRUE(make_plan(job, target).ok());
}

// Full training of a 7B model on a card of 24 GiB beside 64 GiB of host memory.
TEST(GoldenPlans, StatesGoToDiskWhereTheHostHasNoRoom) {
  spec::Job job;
  ASSERT_TRUE(
      spec::Job::load(kFolder / "qwen7b_sft.toml", {"data.micro_batch_size_per_gpu=1"}, job).ok());
  Target target = target_of(job);
  target.capacity = 24_GiB;
  const auto free = make_plan(job, target);
  ASSERT_TRUE(free.ok()) << free.status().message();
  EXPECT_EQ(free->disk_bytes, Bytes());
  target.host_memory = 64_GiB;
  EXPECT_EQ(make_plan(job, target).status().code(), ErrorCode::kDoesNotFit);
  job.memory.allow.push_back(spec::Measure::kDisk);
  const auto plan = make_plan(job, target);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->modes.of(spec::ModelId::kActor), spec::UpdateMode::kDisk);
  EXPECT_LE(plan->host_bytes, 64_GiB);
  EXPECT_LE(plan->peak, 24_GiB);
  // Of a parameter two moments and the master, read and written in each update.
  constexpr double kStates = 12 * 7.6156e9;
  EXPECT_NEAR(static_cast<double>(plan->disk_bytes.count()), kStates, 0.001 * kStates);
  const auto update = plan->index_of(spec::PhaseId::kUpdate);
  ASSERT_TRUE(update);
  const PhasePlan& phase = plan->phases[*update];
  EXPECT_EQ(phase.disk_read, phase.disk_written);
  EXPECT_NEAR(static_cast<double>(phase.disk_read.count()), kStates, 0.001 * kStates);
  EXPECT_GT(plan->seconds(), free->seconds());
  // The disk's rate decides.
  EXPECT_NEAR(phase.seconds, 2 * kStates / 2e9, 0.02 * phase.seconds);
  job.memory.disk_bandwidth = 8_GiB;
  const auto faster = make_plan(job, target);
  ASSERT_TRUE(faster.ok()) << faster.status().message();
  EXPECT_NEAR(faster->phases[*update].seconds, 2 * kStates / (8.0 * (1ull << 30)),
              0.05 * faster->phases[*update].seconds);
  // With less host memory blocks and their gradients go there, too.
  target.host_memory = 16_GiB;
  const auto least = make_plan(job, target);
  ASSERT_TRUE(least.ok()) << least.status().message();
  EXPECT_TRUE(least->modes.blocks_on_disk(spec::ModelId::kActor));
  EXPECT_LE(least->host_bytes, 16_GiB);
  constexpr double kBlocks = 6 * 28 * 233.057792e6;
  EXPECT_NEAR(static_cast<double>(least->disk_bytes.count()), kStates + kBlocks, 0.001 * kStates);
  EXPECT_GT(least->seconds(), faster->seconds());
  const PhasePlan& backward = least->phases[*least->index_of(spec::PhaseId::kBackward)];
  EXPECT_GE(backward.seconds,
            static_cast<double>((backward.disk_read + backward.disk_written).count()) /
                (8.0 * (1ull << 30)));
  // Where the host has room nothing goes to disk.
  target.host_memory = Bytes();
  const auto roomy = make_plan(job, target);
  ASSERT_TRUE(roomy.ok()) << roomy.status().message();
  EXPECT_EQ(roomy->disk_bytes, Bytes());
  EXPECT_EQ(roomy->seconds(), free->seconds());
}

TEST(GoldenPlans, FitAndOutlookOfEveryTask) {
  for (const char* config : {"opt350_reward_host.toml", "qwen7b_grpo.toml", "qwen15_sft.toml"}) {
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / config, {}, job).ok());
    Target target = target_of(job);
    const auto found = make_plan_with_outlook(job, target);
    ASSERT_TRUE(found.ok()) << config << found.status().message();
    ASSERT_TRUE(found->outlook.smaller.has_value()) << config;
    target.capacity = found->outlook.smaller->peak;
    const auto plans = find_fit(job, target);
    ASSERT_TRUE(plans.ok()) << config << plans.status().message();
    EXPECT_LE(plans->front().seconds(), found->outlook.smaller->seconds() * (1 + 1e-9)) << config;
    for (const MemoryPlan& plan : *plans) expect_overrides_give(config, {}, plan);
  }
}

TEST(GoldenPlans, WithEverythingResidentNoSmallerPlanIsOffered) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {"memory.residency=all"}, job).ok());
  Target target = target_of(job);
  for (const Bytes size : {80_GiB, 16_GiB}) {
    target.capacity = size;
    const auto found = make_plan_with_outlook(job, target);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->plan.fits(), size == 80_GiB);
    EXPECT_FALSE(found->outlook.smaller.has_value());
    EXPECT_FALSE(found->outlook.faster.has_value());
    EXPECT_EQ(found->outlook.to_text(found->plan).empty(), size != 80_GiB);
  }
}

TEST(GoldenPlans, FitTakesAnotherTrainingWhereNothingElseFits) {
  const WithWeights weights;
  spec::Job job;
  std::vector<std::string> overrides = weights.paths();
  overrides.emplace_back(kResidentWeights);
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", overrides, job).ok());
  Target target = target_of(job);
  target.capacity = 6_GiB;
  const auto plans = find_fit(job, target);
  ASSERT_TRUE(plans.ok()) << plans.status().message();
  EXPECT_LE(plans->front().peak, target.capacity);
  const std::vector<std::string_view> effects = effects_of(plans->front());
  EXPECT_TRUE(std::any_of(effects.begin(), effects.end(), [](std::string_view e) {
    return e.find("another training") != std::string_view::npos;
  }));
}

TEST(GoldenPlans, AReferenceThatRunsOnceIsOfferedWhereItHelps) {
  const std::vector<std::string> dpo = {"task=dpo", "memory.allow=[\"recompute\"]"};
  Bytes least[2], reference;
  for (const bool once : {false, true}) {
    spec::Job job;
    std::vector<std::string> overrides = dpo;
    if (once) overrides.emplace_back("dpo.precompute_ref_log_probs=true");
    ASSERT_TRUE(spec::Job::load(kFolder / "qwen7b_sft.toml", overrides, job).ok());
    Target target = target_of(job);
    least[once ? 1 : 0] = *least_capacity(job, target);
    target.capacity = Bytes();
    const auto free = make_plan(job, target);
    ASSERT_TRUE(free.ok()) << free.status().message();
    const auto tag = free->index_of({spec::TagKind::kWeights, spec::ModelId::kReference});
    reference = free->tags[tag.value()].bytes;
    target.capacity = 120_GiB;
    const std::string refusal = make_plan(job, target).status().message();
    if (once) {
      EXPECT_EQ(refusal.find("precompute_ref_log_probs"), std::string::npos) << refusal;
    } else {
      EXPECT_NE(refusal.find("dpo.precompute_ref_log_probs=true: needs "), std::string::npos)
          << refusal;
      target.capacity = 140_GiB;
      const std::string closer = make_plan(job, target).status().message();
      EXPECT_NE(closer.find("dpo.precompute_ref_log_probs=true: fits in "), std::string::npos)
          << closer;
    }
  }
  EXPECT_EQ(least[0] - least[1], reference);
}

// The words of --fit for a change are those of the tunable that makes it.
TEST(GoldenPlans, ChangesAreToldByTheirTunable) {
  for (const char* config : {"qwen7b_sft.toml", "qwen7b_ppo.toml", "qwen7b_grpo.toml"}) {
    for (const char* packed : {"false", "true"}) {
      spec::Job job;
      ASSERT_TRUE(spec::Job::load(kFolder / config,
                                  {format("data.use_dynamic_bsz={}", packed),
                                   format("actor_rollout_ref.actor.use_dynamic_bsz={}", packed)},
                                  job)
                      .ok());
      for (const Tunable& tunable : tunables(job)) {
        const std::vector<spec::JobChange> changes = tunable.changes(job, 1);
        for (const spec::JobChange& change : changes)
          EXPECT_EQ(effect_of(change), tunable.effect) << spec::assignments({change}).front();
      }
    }
  }
}

// Everything that memory.allow can hold.
std::string all_measures() {
  std::string text = "memory.allow=[";
  for (const std::string& name : spec::measure_names()) text += format("\"{}\",", name);
  return text + "]";
}
std::vector<std::string> with_auto(std::vector<std::string> more = {}) {
  for (const char* model : {"actor_rollout_ref.model", "critic.model"}) {
    more.push_back(format("{}.enable_gradient_checkpointing=false", model));
    more.push_back(format("{}.activation_checkpointing=auto", model));
  }
  return more;
}

TEST(GoldenPlans, AllowedMeasuresAreTakenAndOthersAreNot) {
  const auto plan = [&](const std::string& allow, std::uint64_t gib) {
    spec::Job job;
    EXPECT_TRUE(
        spec::Job::load(kFolder / "qwen7b_ppo.toml", with_auto({"memory.allow=" + allow}), job)
            .ok());
    Target target = target_of(job);
    target.capacity = Bytes(gib << 30);
    return make_plan(job, target);
  };
  const auto keeps_all = [](const MemoryPlan& p) {
    return std::all_of(p.activations.begin(), p.activations.end(),
                       [](const ActivationPlan& a) { return a.recomputed().empty(); });
  };
  const auto joined = [](const MemoryPlan& p) {
    return std::none_of(p.updated.begin(), p.updated.end(),
                        [](const UpdatePlan& u) { return u.mode == spec::UpdateMode::kStreamed; });
  };
  const Result<MemoryPlan> exact = plan("[\"recompute\",\"move\",\"stream\"]", 79);
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  EXPECT_TRUE(exact->changes.empty());
  EXPECT_FALSE(joined(*exact));
  EXPECT_FALSE(keeps_all(*exact));
  // Without each of them.
  EXPECT_FALSE(plan("[\"recompute\",\"move\"]", 79).ok());
  EXPECT_FALSE(plan("[\"recompute\",\"stream\"]", 79).ok());
  const Result<MemoryPlan> kept = plan("[\"move\",\"stream\"]", 139);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  EXPECT_TRUE(keeps_all(*kept));
  const Result<MemoryPlan> still = plan("[]", 400);
  ASSERT_TRUE(still.ok()) << still.status().message();
  EXPECT_TRUE(still->moved_per_step.is_zero());
  EXPECT_TRUE(keeps_all(*still));
  const Status refused = plan("[]", 200).status();
  EXPECT_EQ(refused.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(refused.message().find("without \"move\" in memory.allow"), std::string::npos)
      << refused.message();
  // bfloat16 states are faster under 79 GiB, and no faster where float32 ones fit without moves.
  const std::string narrow = "[\"recompute\",\"move\",\"stream\",\"bf16_states\"]";
  const Result<MemoryPlan> states = plan(narrow, 79);
  ASSERT_TRUE(states.ok()) << states.status().message();
  EXPECT_EQ(states->changes.size(), 2U);
  EXPECT_LT(states->seconds(), 0.95 * exact->seconds());
  for (const UpdatePlan& u : states->updated) EXPECT_EQ(u.states, spec::Dtype::kBfloat16);
  EXPECT_TRUE(plan(narrow, 400)->changes.empty());
  expect_overrides_give("qwen7b_ppo.toml", with_auto(), *states);
}

TEST(GoldenPlans, OutlookHoldsWhatItPromises) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  for (const std::uint64_t gib : {16U, 22U, 28U, 60U}) {
    target.capacity = Bytes(gib << 30);
    const auto found = make_plan_with_outlook(job, target);
    ASSERT_TRUE(found.ok()) << found.status().message();
    const MemoryPlan& plan = found->plan;
    EXPECT_EQ(plan.peak, make_plan(job, target)->peak);
    EXPECT_EQ(found->outlook.least_capacity, *least_capacity(job, target));
    if (found->outlook.smaller) {
      EXPECT_LE(found->outlook.smaller->peak.count(), plan.peak.count() * 98 / 100);
      EXPECT_GE(found->outlook.smaller->seconds(), plan.seconds() * (1 - 1e-9));
    }
    if (found->outlook.faster) {
      const MemoryPlan& faster = *found->outlook.faster;
      EXPECT_LE(faster.seconds(), 0.95 * plan.seconds());
      EXPECT_GT(faster.peak, plan.peak);
      // A little less does not do.
      target.capacity = Bytes(faster.peak.count() * 95 / 100);
      EXPECT_GT(make_plan(job, target)->seconds(), 0.95 * plan.seconds());
    }
    // At 28 GiB most copies hide.
    EXPECT_EQ(found->outlook.faster.has_value(), gib < 28) << gib;
  }
}

TEST(GoldenPlans, JsonSaysWhatTheTextSays) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_lora_ppo.toml", {}, job).ok());
  const Result<MemoryPlan> plan = make_plan(job, target_of(job));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Json json = plan->to_json();
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["peak"], plan->peak.count());
  ASSERT_EQ(json["phases"].size(), plan->phases.size());
  ASSERT_EQ(json["tags"].size(), plan->tags.size());
  EXPECT_EQ(json["phases"][0]["name"], "generate");
  for (const Json& tag : json["tags"]) EXPECT_EQ(tag["cells"].size(), plan->phases.size());
  // No reference of its own: the actor's base serves, and is needed in that phase.
  for (const Json& tag : json["tags"]) EXPECT_NE(tag["tag"], "reference.weights");
  EXPECT_EQ(json["tags"][0]["tag"], "actor.weights");
  EXPECT_EQ(json["tags"][0]["cells"][2], "need");
  EXPECT_EQ(json["tags"][0]["contents"], "frozen");
}

// Gigabytes that the blocks keep for backward, counted.
double kept_gigabytes(const spec::Architecture& a, spec::CheckpointMode mode,
                      std::int64_t sequences, std::int64_t length) {
  return kept_a_block(a, mode, sequences, length) * static_cast<double>(a.num_hidden_layers) / 1e9;
}

// Korthikanti et al.'s formulas for all blocks, in gigabytes.
double formula_gigabytes(const spec::Architecture& a, spec::CheckpointMode mode, std::int64_t b,
                         std::int64_t s) {
  const auto tokens = static_cast<double>(b * s);
  const auto h = static_cast<double>(a.hidden_size);
  const double scores = 5 * static_cast<double>(a.num_attention_heads) * static_cast<double>(s);
  const double each = mode == spec::CheckpointMode::kFull        ? 2 * h
                      : mode == spec::CheckpointMode::kSelective ? 34 * h
                                                                 : 34 * h + scores;
  return tokens * each * static_cast<double>(a.num_hidden_layers) / 1e9;
}

constexpr std::array<std::pair<const char*, spec::CheckpointMode>, 3> kModes = {
    {{"none", spec::CheckpointMode::kNone},
     {"selective", spec::CheckpointMode::kSelective},
     {"full", spec::CheckpointMode::kFull}}};

std::string activations_table() {
  std::string text = "| blocks of, batch | value | formula | counted |\n|---|---|---|---|\n";
  const auto add = [&](const char* name, const spec::Architecture& a, std::int64_t b,
                       std::int64_t s, bool formula) {
    for (const auto& [word, mode] : kModes)
      text += format("| {} | `{}` | {} | {:.1f} GB |\n", name, word,
                     formula ? format("{:.1f} GB", formula_gigabytes(a, mode, b, s)) : "",
                     kept_gigabytes(a, mode, b, s));
  };
  add("GPT-3 175B, 1 x 2048", gpt2(96, 12288, 96), 1, 2048, true);
  add("a GPT of 30 layers, 4096 wide (BLOOM-7B), 1 x 2048", gpt2(30, 4096, 32), 1, 2048, true);
  const auto qwen = spec::Architecture::from_folder(kFolder / "models" / "qwen1.5");
  add("Qwen2.5-1.5B, 8 x 2048", *qwen, 8, 2048, false);

  text +=
      "\nPlans of supervised training of Qwen2.5-1.5B, 8 x 2048, on an H200; seconds by its "
      "rates:\n\n| value | transient | less than `none` | seconds of a step | more than `none` "
      "|\n|---|---|---|---|---|\n";
  double transient = 0, seconds = 0;  // of "none"
  for (const auto& [word, mode] : kModes) {
    spec::Job job;
    (void)spec::Job::load(kFolder / "qwen15_sft.toml",
                          {format("actor_rollout_ref.model.activation_checkpointing={}", word)},
                          job);
    const Result<MemoryPlan> plan = make_plan(job, target_of(job));
    const PhasePlan& train = plan->phases.at(0);
    const auto bytes = static_cast<double>(train.transient.count());
    if (mode == spec::CheckpointMode::kNone) {
      transient = bytes;
      seconds = train.seconds;
    }
    text +=
        format("| `{}` | {} | {:.1f} % | {:.3f} | {:.1f} % |\n", word, train.transient,
               100 * (1 - bytes / transient), train.seconds, 100 * (train.seconds / seconds - 1));
  }
  return text;
}

// User CPU seconds of the least of five calls.
template <class Call>
double least_seconds(const Call& call) {
  double least = 1e9;
  for (int i = 0; i < 5; ++i) {
    const std::clock_t start = std::clock();
    EXPECT_TRUE(call());
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST(GoldenPlans, AutoIsNoSlowerThanAnyModeThatFits) {
  for (const std::uint64_t gib : {70U, 66U, 60U, 52U, 47U, 40U, 34U, 29U}) {
    const auto plan = [&](const char* mode) {
      spec::Job job;
      EXPECT_TRUE(
          spec::Job::load(kFolder / "qwen15_sft.toml",
                          {format("actor_rollout_ref.model.activation_checkpointing={}", mode),
                           "memory.update=joined"},
                          job)
              .ok());
      Target target = target_of(job);
      target.capacity = Bytes(gib << 30);
      return make_plan(job, target);
    };
    const Result<MemoryPlan> chosen = plan("auto");
    ASSERT_TRUE(chosen.ok()) << gib << ": " << chosen.status().message();
    EXPECT_TRUE(chosen->fits()) << gib;
    bool between = false;  // a mode does not fit, another one leaves room
    for (const auto& [word, mode] : kModes) {
      const Result<MemoryPlan> fixed = plan(word);
      if (!fixed.ok()) {
        between = true;
        continue;
      }
      EXPECT_LE(chosen->seconds(), fixed->seconds() * (1 + 1e-9)) << gib << " GiB, " << word;
      if (gib >= 70) {
        EXPECT_EQ(*chosen->checkpointing(spec::ModelId::kActor),
                  *plan("none")->checkpointing(spec::ModelId::kActor));
      }
    }
    // Between two modes it recomputes in some blocks only and uses what there is.
    if (between) {
      EXPECT_GT(chosen->peak.count(), (gib << 30) - (1ULL << 30)) << gib;
    }
  }
}

TEST(GoldenPlans, OfA7BJobTakeTwentyMillisecondsAndASecondWithTheSearch) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "times are those of an optimized build";
#endif
  const auto load = [](const std::vector<std::string>& overrides) {
    spec::Job job;
    EXPECT_TRUE(spec::Job::load(kFolder / "qwen7b_ppo.toml", overrides, job).ok());
    return job;
  };
  const auto limit = [](const char* what, double most, const auto& call) {
    const double seconds = least_seconds(call);
    std::printf("%s: %.1f ms\n", what, 1e3 * seconds);
    EXPECT_LE(seconds, most) << what;
  };
  const spec::Job plain = load({"memory.update=joined"});
  // Limits are of a quiet machine; beside other programs the same work takes up to 1.7 times the CPU time.
  constexpr double kBusy = 1.7;
  limit("one plan", 0.020 * kBusy, [&] { return make_plan(plain, target_of(plain)).ok(); });
  const spec::Job open = load(with_auto());
  limit("updates and activations chosen, with outlook", 1.0 * kBusy,
        [&] { return make_plan_with_outlook(open, target_of(open)).ok(); });
  spec::Job all = load(with_auto({all_measures(), "device.memory=79GiB"}));
  limit("every measure, with outlook", 1.0 * kBusy,
        [&] { return make_plan_with_outlook(all, target_of(all)).ok(); });
  limit("three plans ranked", 1.0 * kBusy, [&] { return find_fit(all, target_of(all)).ok(); });
}

// Compares what stands between <!-- name: ... --> and <!-- /name --> in docs/memory-model.md.
void compare_page(const std::string& name, const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(NEAP_SOURCE_DIR) / "docs" / "memory-model.md";
  const Result<std::string> page = read_file(file);
  ASSERT_TRUE(page.ok());
  const std::size_t mark = page->find("<!-- " + name + ":");
  const std::size_t end = page->find("<!-- /" + name + " -->");
  ASSERT_NE(mark, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::size_t begin = page->find('\n', mark) + 1;
  compare_file(file, page->substr(0, begin) + text + page->substr(end));
}

TEST(GoldenPlans, TheCommittedTableOfActivationsIsThePlans) {
  compare_page("activations", activations_table());
}

TEST(GoldenPlans, TheCommittedSentencesAreThePlans) {
  spec::Job job;
  const std::string allow = "memory.allow=[\"recompute\",\"move\",\"stream\",\"bf16_states\"]";
  ASSERT_TRUE(
      spec::Job::load(kFolder / "qwen7b_ppo.toml", with_auto({allow, "device.memory=79GiB"}), job)
          .ok());
  const auto found = make_plan_with_outlook(job, target_of(job));
  ASSERT_TRUE(found.ok()) << found.status().message();
  compare_page("outlook", "```" + found->outlook.to_text(found->plan) + "```\n");
}

TEST(GoldenPlans, TheCommittedReferencePagesAreTheTable) {
  const std::filesystem::path docs = std::filesystem::path(NEAP_SOURCE_DIR) / "docs";
  for (const spec::ReferencePage& page : spec::configuration_reference())
    compare_file(docs / page.file, page.text);
  compare_file(docs / "verl-trl-keys.md", spec::peer_reference());
}

}  // namespace
}  // namespace neap::plan

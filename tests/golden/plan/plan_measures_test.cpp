// What plans choose under a ceiling: moves, divided updates, recomputed blocks, disks, narrow states. And how long that takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

#include "base/format.h"
#include "golden/plan/jobs.h"
#include "plan/search/advice.h"

namespace neap::plan {
namespace {

TEST(GoldenPlans, UpdatesAreDividedWhereThatFitsAndNotElsewhere) {
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / "opt_ppo.toml", {}, job).ok());
  Target target = target_of(job);
  std::map<spec::UpdateMode, Bytes> least;
  for (const spec::UpdateMode mode :
       {spec::UpdateMode::kJoined, spec::UpdateMode::kSplit, spec::UpdateMode::kStreamed}) {
    job.memory.optimizer_offload = {false, mode};
    const Result<Bytes> found = least_capacity(job, target);
    ASSERT_TRUE(found.ok()) << found.status().message();
    least[mode] = *found;
    target.capacity = *found;
    const Result<MemoryPlan> plan = make_plan(job, target);
    ASSERT_TRUE(plan.ok()) << to_string(mode) << ": " << plan.status().message();
    EXPECT_LE(plan->peak, target.capacity);
    for (const spec::ModelId model : spec::describe(job).trained())
      EXPECT_EQ(plan->modes.of(model).update, mode);
  }
  EXPECT_LT(least[spec::UpdateMode::kSplit], least[spec::UpdateMode::kJoined]);
  EXPECT_LT(least[spec::UpdateMode::kStreamed], least[spec::UpdateMode::kSplit] / 2);
  job.memory.optimizer_offload = {};
  EXPECT_EQ(*least_capacity(job, target), least[spec::UpdateMode::kStreamed]);
  // Where everything fits, nothing is divided.
  target.capacity = 48_GiB;
  spec::StepModes whole;
  whole.graphs = true;
  EXPECT_EQ(make_plan(job, target)->modes, whole);
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
  EXPECT_EQ(plan->modes.of(spec::ModelId::kActor).states(), spec::Home::kDisk);
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
  job.memory.nvme_bandwidth = 8_GiB;
  const auto faster = make_plan(job, target);
  ASSERT_TRUE(faster.ok()) << faster.status().message();
  EXPECT_NEAR(faster->phases[*update].seconds, 2 * kStates / (8.0 * (1ull << 30)),
              0.05 * faster->phases[*update].seconds);
  // With less host memory blocks and their gradients go there, too.
  target.host_memory = 16_GiB;
  const auto least = make_plan(job, target);
  ASSERT_TRUE(least.ok()) << least.status().message();
  EXPECT_EQ(least->modes.of(spec::ModelId::kActor).layers, spec::Home::kDisk);
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
    return std::none_of(p.modes.models.begin(), p.modes.models.end(), [](const auto& homes) {
      return homes.update == spec::UpdateMode::kStreamed;
    });
  };
  const Result<MemoryPlan> exact = plan("[\"recompute\",\"offload\",\"offload_optimizer\"]", 79);
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  EXPECT_TRUE(exact->changes.empty());
  EXPECT_FALSE(joined(*exact));
  EXPECT_FALSE(keeps_all(*exact));
  // Without each of them.
  EXPECT_FALSE(plan("[\"recompute\",\"offload\"]", 79).ok());
  EXPECT_FALSE(plan("[\"recompute\",\"offload_optimizer\"]", 79).ok());
  const Result<MemoryPlan> kept = plan("[\"offload\",\"offload_optimizer\"]", 139);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  EXPECT_TRUE(keeps_all(*kept));
  const Result<MemoryPlan> still = plan("[]", 400);
  ASSERT_TRUE(still.ok()) << still.status().message();
  EXPECT_TRUE(still->moved_per_step.is_zero());
  EXPECT_TRUE(keeps_all(*still));
  const Status refused = plan("[]", 200).status();
  EXPECT_EQ(refused.code(), ErrorCode::kDoesNotFit);
  EXPECT_NE(refused.message().find("without \"offload\" in memory.allow"), std::string::npos)
      << refused.message();
  // bfloat16 states are faster under 79 GiB, and no faster where float32 ones fit without moves.
  const std::string narrow = "[\"recompute\",\"offload\",\"offload_optimizer\",\"bf16_states\"]";
  const Result<MemoryPlan> states = plan(narrow, 79);
  ASSERT_TRUE(states.ok()) << states.status().message();
  EXPECT_EQ(states->changes.size(), 2U);
  EXPECT_LT(states->seconds(), 0.95 * exact->seconds());
  for (const std::string& change : spec::assignments(states->changes))
    EXPECT_NE(change.find("state_dtype=bfloat16"), std::string::npos) << change;
  EXPECT_TRUE(plan(narrow, 400)->changes.empty());
  expect_overrides_give("qwen7b_ppo.toml", with_auto({"memory.allow=" + narrow}), *states);
}

TEST(GoldenPlans, AutoIsNoSlowerThanAnyModeThatFits) {
  for (const std::uint64_t gib : {70U, 66U, 60U, 52U, 47U, 40U, 34U, 29U}) {
    const auto plan = [&](const char* mode) {
      spec::Job job;
      EXPECT_TRUE(
          spec::Job::load(kFolder / "qwen15_sft.toml",
                          {format("actor_rollout_ref.model.activation_checkpointing={}", mode),
                           "memory.optimizer_offload=none"},
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

// Everything that memory.allow can hold.
std::string all_measures() {
  std::string text = "memory.allow=[";
  for (const std::string& name : spec::measure_names()) text += format("\"{}\",", name);
  return text + "]";
}

// The least CPU seconds of some calls.
template <class Call>
double least_seconds(int calls, const Call& call) {
  double least = 1e9;
  for (int i = 0; i < calls; ++i) {
    const std::clock_t start = std::clock();
    EXPECT_TRUE(call());
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

// Searches are limited to a number of plans' time, because machines differ by more than searches.
TEST(GoldenPlans, OfA7BJobTakeMillisecondsAndSecondsWithTheSearch) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "times are those of an optimized build";
#endif
  const auto load = [](const std::vector<std::string>& overrides) {
    spec::Job job;
    EXPECT_TRUE(spec::Job::load(kFolder / "qwen7b_ppo.toml", overrides, job).ok());
    return job;
  };
  const spec::Job plain = load({"memory.optimizer_offload=none"});
  // Five times what a quiet desktop takes.
  constexpr double kOnePlan = 0.3;
  const double one = least_seconds(10, [&] { return make_plan(plain, target_of(plain)).ok(); });
  std::printf("one plan: %.1f ms\n", 1e3 * one);
  EXPECT_LE(one, kOnePlan);
  const auto limit = [&](const char* what, double most_plans, const auto& call) {
    const double seconds = least_seconds(2, call);
    std::printf("%s: %.1f ms, %.0f plans\n", what, 1e3 * seconds, seconds / one);
    EXPECT_LE(seconds, most_plans * one) << what;
  };
  const spec::Job open = load(with_auto());
  limit("updates and activations chosen, with outlook", 150,
        [&] { return make_plan_with_outlook(open, target_of(open)).ok(); });
  spec::Job all = load(with_auto({all_measures(), "device.memory=79GiB"}));
  limit("every measure, with outlook", 250,
        [&] { return make_plan_with_outlook(all, target_of(all)).ok(); });
  limit("three plans ranked", 100, [&] { return find_fit(all, target_of(all)).ok(); });
}

}  // namespace
}  // namespace neap::plan

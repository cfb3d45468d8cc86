// Gradients that ranks divide: each unit's are handed over once, when they are complete; and one that fails ends the
// phase.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "aten_world.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "checked_ranks.h"
#include "conformance.h"
#include "divided_job.h"
#include "live_phase.h"
#include "random_job.h"

namespace neap::plan {
namespace {

// Training phases of a random job on one rank of several, whose gradients are all kept or all stepped by it. Odd seeds
// divide the updates.
void for_each_training_phase(
    std::uint64_t seed, testing::CheckedRanks& ranks,
    const std::function<void(AtenWorld&, const testing::RandomJob&, const spec::Phase&)>& visit) {
  const bridge::NoAutograd no_autograd;
  testing::RandomJob r = testing::random_job(seed, testing::test_device().is_cpu());
  divide(r, ranks, static_cast<std::int64_t>(seed / 2 % 2));
  spec::StepModes modes;
  const spec::Recipe joined = spec::describe(r.job);
  for (const spec::ModelId model : joined.trained()) {
    spec::ModelHomes& homes = modes.of(model);
    if (seed % 2 == 1) homes.update = spec::UpdateMode::kSplit;
    const std::vector<spec::ModelId> streamable = spec::streamable(joined);
    if (seed % 3 != 0 || std::find(streamable.begin(), streamable.end(), model) == streamable.end())
      continue;
    homes.layers = spec::Home::kHost;
    if (r.models.at(model).trains_blocks()) homes.update = spec::UpdateMode::kStreamed;
    if (seed % 2 == 0) homes.tables = spec::Home::kHost;
    homes.together = 1 + static_cast<std::int64_t>(seed / 3 % 4);
  }
  AtenWorld world(r, modes, ranks);
  for (const spec::Phase& phase : spec::describe(r.job, modes).phases)
    if (phase.trains()) visit(world, r, phase);
}

TEST(HandOver, EachUnitGoesOnceBehindItsLastAddend) {
  std::int64_t batches = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    testing::CheckedRanks ranks(static_cast<int>(seed % 2), 2);
    for_each_training_phase(seed, ranks, [&](AtenWorld& world, const auto& r, const auto& phase) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
      run_live(
          world, r, phase, [] {}, true);
      EXPECT_EQ(ranks.wrong(), "");
      const std::vector<std::int64_t> handed = ranks.take_elements();
      if (phase.part == spec::TrainPart::kUpdate) {
        EXPECT_TRUE(handed.empty());
        return;
      }
      std::int64_t all = 0;
      for (const spec::FlatUnit& unit : trained_units(role_of(r.models, phase)))
        all += unit.elements;
      EXPECT_EQ(
          handed,
          std::vector<std::int64_t>(
              static_cast<std::size_t>(spec::update_shape(r.job, phase.body).updates()), all));
      batches += std::ssize(handed);
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(batches, 60);
}

TEST(HandOver, OneThatFailsEndsThePhase) {
  std::int64_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    testing::CheckedRanks ranks(0, 2);
    for_each_training_phase(seed, ranks, [&](AtenWorld& world, const auto& r, const auto& phase) {
      if (phase.part == spec::TrainPart::kUpdate) return;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
      ranks.fail_at(-1);
      run_live(
          world, r, phase, [] {}, true);
      const std::int64_t calls = ranks.calls();
      EXPECT_GE(calls, 1);
      for (const std::int64_t k : std::set{std::int64_t{0}, calls / 2, calls - 1}) {
        ranks.fail_at(k);
        try {
          run_live(
              world, r, phase, [] {}, true);
          ADD_FAILURE() << "call " << k << " of " << calls << " did not fail";
        } catch (const Error& e) {
          EXPECT_STREQ(e.what(), "made to fail");
          EXPECT_EQ(ranks.calls(), k + 1);
        }
        ranks.forget();
        ++failures;
      }
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(failures, 20);
}

}  // namespace
}  // namespace neap::plan

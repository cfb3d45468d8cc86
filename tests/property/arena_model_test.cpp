// Random operations on an arena against a model of what each region must hold.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "arena_model.h"

namespace neap::arena {
namespace {

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// NEAP_PROPERTY_OPERATIONS sets how many operations run in all (1000000 for a long run),
// NEAP_PROPERTY_SEED the first seed, NEAP_PROPERTY_SECONDS when to end between two seeds; a failure
// names its seed.
class ArenaModel : public testing::TestWithParam<device::DeviceMaker> {};

TEST_P(ArenaModel, RandomOperationsAgree) {
  const device::MadeDevice made = GetParam().make(GetParam().unit * kCapacityUnits);
  if (made.real == nullptr) GTEST_SKIP() << GetParam().name << ": " << made.skip_reason;
  const bool host = made.real->info().kind == device::Kind::kHost;
  const std::uint64_t each = host ? 20'000 : 2'000;
  const std::uint64_t operations = number("NEAP_PROPERTY_OPERATIONS", host ? 60'000 : each);
  const std::uint64_t first = number("NEAP_PROPERTY_SEED", 1);
  const std::chrono::seconds most(number("NEAP_PROPERTY_SECONDS", 1'000'000));
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::steady_clock::now() - begin; };
  std::uint64_t done = 0;
  std::uint64_t seed = first;
  for (; done < operations && spent() < most; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Model model(*made.real, seed);
    for (std::uint64_t i = 0; i < each; ++i, ++done) {
      model.step();
      if (i % 500 == 0) model.look_at_all();
      if (testing::Test::HasFailure()) FAIL() << "at operation " << i << " of seed " << seed;
    }
    model.finish();
    if (testing::Test::HasFailure()) return;
  }
  std::cout << done << " operations, seeds " << first << " to " << seed - 1 << ", "
            << std::chrono::duration_cast<std::chrono::seconds>(spent()).count() << " s\n";
}

INSTANTIATE_TEST_SUITE_P(Every, ArenaModel,
                         testing::Values(device::host_maker("Host", 4_KiB), device::cuda_maker()),
                         [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace neap::arena

// Address orders: segments never overlap, recorded addresses come first, and a result that depends
// on the order is reported as a range.
#include "replay/address_order.h"

#include <gtest/gtest.h>

#include "replay/advice.h"
#include "replay/summary.h"
#include "unit/replay/script.h"

namespace neap::replay {
namespace {

using cache::Address;
using Kind = AddressOrder::Kind;
constexpr std::uint64_t kSegment = 20 * kMiB;

Workload workload_of(Script& script) {
  auto workload = prepare(script.recording, script.device());
  EXPECT_TRUE(workload.ok());
  return std::move(workload).value();
}

TEST(AddressOrder, TheBestEstimateComesFirstAndEveryOrderIsDifferent) {
  const auto orders = address_orders(kDefaultAddressOrders);
  ASSERT_EQ(orders.size(), kDefaultAddressOrders);
  EXPECT_EQ(orders.front().kind, Kind::kRecorded);
  std::set<std::string> names;
  for (const AddressOrder& order : orders) names.insert(to_string(order));
  EXPECT_EQ(names.size(), orders.size());
  EXPECT_EQ(address_orders(0).size(), 1u);
  EXPECT_EQ(address_orders(2).size(), 2u);
}

class RecordedAddresses : public ::testing::Test {
 protected:
  RecordedAddresses() {
    using enum trace::EventKind;
    script_.add(kSegmentAlloc, kBase + 3 * kSegment, kSegment)
        .add(kSegmentAlloc, kBase, 2 * kMiB)
        .add(kSegmentAlloc, kBase + kSegment, kSegment);
    workload_ = workload_of(script_);
  }
  static Address take(OrderedSource& source, std::uint64_t size) {
    return *source.allocate(Bytes(size), 0, false);
  }
  Script script_;
  Workload workload_;
};

TEST_F(RecordedAddresses, AreFollowedWhileTheSizesAreTheRecordedOnes) {
  OrderedSource source(1_TiB, {Kind::kRecorded, 0}, workload_);
  EXPECT_EQ(take(source, kSegment), kBase + 3 * kSegment);
  EXPECT_EQ(take(source, 2 * kMiB), kBase);
  EXPECT_EQ(take(source, kSegment), kBase + kSegment);
  EXPECT_EQ(take(source, 2 * kMiB), kBase + 2 * kMiB) << "the lowest hole";
  EXPECT_FALSE(source.released_segments());
}

TEST_F(RecordedAddresses, AnotherSizeEndsThePrefix) {
  OrderedSource source(1_TiB, {Kind::kRecorded, 0}, workload_);
  EXPECT_EQ(take(source, kSegment), kBase + 3 * kSegment);
  EXPECT_EQ(take(source, 64 * kMiB), kBase + 3 * kSegment - 64 * kMiB) << "below the others";
  EXPECT_EQ(take(source, 2 * kMiB), kBase + 4 * kSegment) << "the rest of the first chunk";
}

TEST_F(RecordedAddresses, OfASizeAreUsedOnceAfterARelease) {
  OrderedSource source(1_TiB, {Kind::kRecorded, 0}, workload_);
  const Address first = take(source, kSegment);
  ASSERT_TRUE(source.free(first, Bytes(kSegment)).ok());
  EXPECT_TRUE(source.released_segments());
  EXPECT_EQ(take(source, kSegment), kBase + kSegment);
  EXPECT_LT(take(source, kSegment), kBase);
  EXPECT_EQ(take(source, 2 * kMiB), kBase);
}

TEST_F(RecordedAddresses, AreReusedByAnOrderOfTheirOwn) {
  OrderedSource source(1_TiB, {Kind::kRecordedReused, 0}, workload_);
  const Address first = take(source, kSegment);
  EXPECT_EQ(first, kBase + 3 * kSegment);
  EXPECT_EQ(take(source, kSegment), kBase + kSegment);
  ASSERT_TRUE(source.free(first, Bytes(kSegment)).ok());
  EXPECT_EQ(take(source, kSegment), first);
}

TEST(AddressOrder, LiveSegmentsNeverOverlap) {
  Script script;  // recorded addresses that overlap each other, as different times may
  for (std::uint64_t i = 0; i < 300; ++i)
    script.add(trace::EventKind::kSegmentAlloc, kBase + i * 4 * kMiB,
               i % 3 == 0   ? 2 * kMiB
               : i % 3 == 1 ? kSegment
                            : 64 * kMiB);
  const Workload workload = workload_of(script);
  for (const AddressOrder& order : address_orders(20)) {
    SCOPED_TRACE(to_string(order));
    OrderedSource source(1_TiB, order, workload);
    std::map<Address, std::uint64_t> live;
    std::mt19937_64 random(7);
    for (int i = 0; i < 2000; ++i) {
      if (live.size() > 1 && random() % 100 < 45) {
        const auto at = std::next(live.begin(), static_cast<long>(random() % live.size()));
        ASSERT_TRUE(source.free(at->first, Bytes(at->second)).ok());
        live.erase(at);
        continue;
      }
      const std::uint64_t size = random() % 3 == 0 ? 2 * kMiB : random() % 2 ? kSegment : 64 * kMiB;
      const auto at = source.allocate(Bytes(size), 0, false);
      ASSERT_TRUE(at.ok());
      ASSERT_EQ(*at % (2 * kMiB), 0u);
      const auto next = live.lower_bound(*at);
      ASSERT_TRUE(next == live.end() || *at + size <= next->first) << i;
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= *at)
          << i;
      live[*at] = size;
    }
  }
}

/// After the release, two segments have free blocks of one size. The 2 MiB tensor goes to the lower
/// one; a 20 MiB tensor finds room only if that was the other one.
class ATieAfterARelease : public ::testing::Test {
 protected:
  void SetUp() override {
    using enum trace::EventKind;
    const std::uint64_t nine = 19 * kMiB / 2;
    const Address x = kBase;
    const Address y = kBase + kSegment;
    const Address w = kBase + 2 * kSegment;
    script_.phase(kPhaseBegin, "phase:generate")
        .add(kSegmentAlloc, x, kSegment)
        .add(kAlloc, x, 8 * kMiB)
        .free(x, 8 * kMiB)
        .phase(kPhaseEnd, "phase:generate")
        .phase(kPhaseBegin, "phase:train")
        .add(kAlloc, x, nine)
        .add(kAlloc, x + nine, nine)
        .add(kSegmentAlloc, y, kSegment)
        .add(kAlloc, y, nine)
        .add(kAlloc, y + nine, nine)
        .free(x + nine, nine)
        .free(y + nine, nine)
        .add(kAlloc, x + nine, 2 * kMiB)
        .free(x, nine)
        .add(kSegmentAlloc, w, kSegment)
        .add(kAlloc, w, kSegment)
        .phase(kPhaseEnd, "phase:train");
    const std::uint64_t rest = kSegment - nine;
    script_.segment(x, kSegment,
                    {{x, nine, 0, 0, kFree},
                     {x + nine, 2 * kMiB, 2 * kMiB, 0, kLive},
                     {x + nine + 2 * kMiB, rest - 2 * kMiB, 0, 0, kFree}},
                    false);
    script_.segment(y, kSegment, {{y, nine, nine, 0, kLive}, {y + nine, rest, 0, 0, kFree}}, false);
    script_.segment(w, kSegment, {{w, kSegment, kSegment, 0, kLive}}, false);
    workload_ = workload_of(script_);
    const auto fidelity = check_fidelity(workload_);
    ASSERT_TRUE(fidelity.ok());
    ASSERT_EQ(fidelity->allocs_equal, 7u);
    ASSERT_EQ(fidelity->segments_equal, 3u);
  }
  [[nodiscard]] Outcome run(const char* empty, std::size_t orders = kDefaultAddressOrders,
                            Bytes capacity = 80_GiB) {
    const auto outcomes = run_scenarios(
        workload_, {*Scenario::make("", empty, 0, workload_.version)}, capacity, 2, {}, orders);
    EXPECT_TRUE(outcomes[0].ok());
    return *outcomes[0];
  }
  Script script_;
  Workload workload_;
};

TEST_F(ATieAfterARelease, GivesARange) {
  const Outcome outcome = run("generate");
  std::set<Bytes> peaks;
  for (const OrderFigures& order : outcome.orders) peaks.insert(order.peak_reserved);
  EXPECT_EQ(peaks, (std::set<Bytes>{Bytes(2 * kSegment), Bytes(3 * kSegment)}));
  // A quarter of the spread on both sides, but not below what was allocated.
  EXPECT_EQ(outcome.peak_reserved_range().least,
            std::max(Bytes(35 * kMiB), outcome.peak_allocated));
  EXPECT_EQ(outcome.peak_reserved_range().most, Bytes(65 * kMiB));
  EXPECT_EQ(outcome.driver_allocs_range().least, 2u);
  EXPECT_EQ(outcome.driver_allocs_range().most, 5u);
  EXPECT_EQ(outcome.peak_reserved, Bytes(3 * kSegment)) << "the recorded addresses ascend";
  EXPECT_EQ(outcome.orders.size(), kDefaultAddressOrders);
}

TEST_F(ATieAfterARelease, WithoutAReleaseThereIsOneNumber) {
  const Outcome outcome = run("none");
  EXPECT_EQ(outcome.orders.size(), 1u);
  EXPECT_TRUE(outcome.peak_reserved_range().is_one_number());
  EXPECT_EQ(outcome.peak_reserved, Bytes(3 * kSegment));
  EXPECT_EQ(outcome.peak_requested, 38_MiB) << "four tensors of 9.5 MiB";
  EXPECT_EQ(to_string(outcome.peak_reserved_range()), "60 MiB");
  EXPECT_EQ(to_string(Interval<Bytes>{40_MiB, 60_MiB}), "40 to 60 MiB");
  EXPECT_EQ(to_string(Interval<Bytes>{Bytes(1000 << 20), 1_GiB}), "1000 MiB to 1 GiB");
}

TEST_F(ATieAfterARelease, OneOrderGivesTheBestEstimate) {
  const Outcome outcome = run("generate", 1);
  EXPECT_EQ(outcome.orders.size(), 1u);
  EXPECT_TRUE(outcome.peak_reserved_range().is_one_number());
}

TEST_F(ATieAfterARelease, SomeOrdersFitWhereOthersDoNot) {
  const Outcome outcome = run("generate", kDefaultAddressOrders, Bytes(2 * kSegment));
  ASSERT_TRUE(outcome.oom.has_value());
  EXPECT_GT(outcome.orders_out_of_memory(), 0u);
  EXPECT_LT(outcome.orders_out_of_memory(), outcome.orders.size());
}

TEST_F(ATieAfterARelease, IsTheSameForAnyNumberOfThreads) {
  const auto scenario = *Scenario::make("", "generate", 0, workload_.version);
  const auto one = run_scenarios(workload_, {scenario, scenario}, 80_GiB, 1);
  std::size_t calls = 0;
  const auto many =
      run_scenarios(workload_, {scenario, scenario}, 80_GiB, 8, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 2u);
  for (std::size_t i = 0; i < kDefaultAddressOrders; ++i) {
    EXPECT_EQ(one[1]->orders[i].peak_reserved, many[0]->orders[i].peak_reserved);
    EXPECT_EQ(to_string(one[1]->orders[i].order), to_string(many[0]->orders[i].order));
  }
}

TEST_F(ATieAfterARelease, TheSummaryCarriesTheRange) {
  Summary summary;
  summary.workload = &workload_;
  summary.fidelity = *check_fidelity(workload_);
  summary.what_if.push_back(
      {*Scenario::make("", "generate", 0, workload_.version), run("generate")});
  const Json line = to_json(summary)["what_if"][0];
  EXPECT_EQ(line["peak_reserved"], 3 * kSegment);
  const auto range = summary.what_if[0].outcome.peak_reserved_range();
  EXPECT_EQ(line["peak_reserved_range"], Json({range.least.count(), range.most.count()}));
  EXPECT_EQ(line["driver_allocs_range"], Json({2, 5}));
  EXPECT_EQ(line["address_orders"], kDefaultAddressOrders);
  EXPECT_EQ(line["orders_out_of_memory"], 0);
  const std::string text = to_text(summary);
  EXPECT_NE(text.find(to_string(range)), std::string::npos) << text;
  EXPECT_NE(text.find("2 to 5"), std::string::npos) << text;
}

}  // namespace
}  // namespace neap::replay

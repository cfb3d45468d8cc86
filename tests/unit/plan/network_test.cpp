// What a collective or a transfer takes, by where its ranks are.
#include "plan/results/network.h"

#include <gtest/gtest.h>

namespace neap::plan {
namespace {

using spec::Axis;
using spec::Mesh;

// 2 ranks a machine; 100 bytes a second within, 10 a rank between.
constexpr Network kNetwork{{100, 0.25}, {10, 1}, 2, 2};

void expect_rates(const step::PeerRates& rates, double bytes, double round) {
  EXPECT_DOUBLE_EQ(rates.bytes, bytes);
  EXPECT_DOUBLE_EQ(rates.latency, 2);
  EXPECT_DOUBLE_EQ(rates.round, round);
}

TEST(Network, TheSlowestHopOfAGroupDecides) {
  expect_rates(group_rates(kNetwork, {0, 1}), 100, 0.25);    // one machine
  expect_rates(group_rates(kNetwork, {0, 2, 4}), 10, 2);     // three machines, one port each
  expect_rates(group_rates(kNetwork, {0, 1, 2, 3}), 20, 3);  // two machines, both ports
  expect_rates(group_rates(kNetwork, {0, 1, 2}), 10, 2);     // the second has one of its ranks
  expect_rates(group_rates(kNetwork, {5}), 100, 0);          // nothing is sent
  Network fast = kNetwork;
  fast.between.bytes = 400;  // more than a rank takes within a machine
  expect_rates(group_rates(fast, {0, 1, 2, 3}), 100, 3);
  expect_rates(group_rates(fast, {0, 2}), 400, 1);
  Network one = kNetwork;
  one.node_ranks = 0;
  expect_rates(group_rates(one, {0, 1, 2, 3}), 100, 0.75);
}

TEST(Network, SecondsAreStartRoundsAndBytes) {
  const step::PeerRates rates = group_rates(kNetwork, {0, 1, 2, 3});
  EXPECT_DOUBLE_EQ(step::peer_seconds(rates, 60, 1), 2 + 3 + 3);
  EXPECT_DOUBLE_EQ(step::peer_seconds(rates, 120, 2), 2 + 6 + 6);
  EXPECT_EQ(step::peer_seconds({}, 60, 1), 0);
}

TEST(Network, AxesAreWhereTheMeshPutsTheirRanks) {
  const Mesh mesh = Mesh().set(Axis::kPipe, 2).set(Axis::kData, 4).set(Axis::kTensor, 2);
  expect_rates(axis_rates(kNetwork, mesh, Axis::kTensor), 100, 0.25);  // neighbours
  expect_rates(axis_rates(kNetwork, mesh, Axis::kData), 10, 3);        // every second rank
  expect_rates(axis_rates(kNetwork, mesh, Axis::kPipe), 10, 1);        // 8 ranks apart
  // Machines of 3: some of the pairs are in two.
  Network odd = kNetwork;
  odd.node_ranks = 3;
  expect_rates(axis_rates(odd, mesh, Axis::kTensor), 10, 1);
  // One machine has all.
  odd.node_ranks = 16;
  expect_rates(axis_rates(odd, mesh, Axis::kData), 100, 0.75);
}

TEST(Network, StagesSendOverTheSlowestOfTheirConnections) {
  const Mesh mesh = Mesh().set(Axis::kPipe, 4).set(Axis::kTensor, 2);
  EXPECT_DOUBLE_EQ(transfer_seconds(kNetwork, mesh, 0, 50), 2 + 1 + 5);
  Network wide = kNetwork;
  wide.node_ranks = 4;  // stages 0 and 1 are in a machine, 1 and 2 are not
  EXPECT_DOUBLE_EQ(transfer_seconds(wide, mesh, 0, 50), 2 + 0.25 + 0.5);
  EXPECT_DOUBLE_EQ(transfer_seconds(wide, mesh, 1, 50), 2 + 1 + 5);
  EXPECT_DOUBLE_EQ(transfer_seconds(wide, mesh, 3, 50), 2 + 1 + 5);  // the last to the first
}

TEST(Network, KeysOfTheJobSayWhatThereIs) {
  spec::Job job;
  job.trainer.n_gpus_per_node = 4;
  job.parallel.intra_node_bandwidth = Bytes(25'000'000'000);
  const Network network = network_of(job, default_network(true));
  EXPECT_EQ(network.node_ranks, 4);
  EXPECT_DOUBLE_EQ(network.within.bytes, 25e9);
  EXPECT_DOUBLE_EQ(network.between.bytes, default_network(true).between.bytes);
  // Sums of two GPUs start in the 30 us that were measured.
  EXPECT_NEAR(step::peer_seconds(group_rates(default_network(true), {0, 1}), 0, 2), 30e-6, 1e-9);
}

TEST(Network, WhereNoKeySaysItMachinesAreThoseOfTheLauncher) {
  spec::Job job;
  EXPECT_EQ(network_of(job, kNetwork).node_ranks, 0);  // one machine
  job.launched_ranks = 8;
  job.launched_node_ranks = 4;
  EXPECT_EQ(network_of(job, kNetwork).node_ranks, 4);
  job.trainer.n_gpus_per_node = 2;
  EXPECT_EQ(network_of(job, kNetwork).node_ranks, 2);
}

TEST(Network, MachinesOfAPlanHaveOneRankEachWhereNobodySaysHowMany) {
  spec::Job job;
  job.trainer.nnodes = 4;
  ASSERT_EQ(job.ranks(), 4);
  EXPECT_EQ(network_of(job, kNetwork).node_ranks, 1);
  expect_rates(axis_rates(network_of(job, kNetwork), job.mesh(), Axis::kData), 10, 3);
  job.launched_ranks = 8;  // of a launcher that does not say how many a machine has
  EXPECT_EQ(network_of(job, kNetwork).node_ranks, 2);
}

}  // namespace
}  // namespace neap::plan

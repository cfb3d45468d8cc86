// Sums over ranks on the clock of a plan: what backward hides of them, and what NCCL takes.
#include "plan/counting/counted_peers.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "plan/counting/nccl_memory.h"
#include "spec/ranks/rank_groups.h"
#include "unit/plan/no_memory.h"

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::key_of;
using step::Table;

constexpr std::int64_t kElements = 4 << 20;  // of a block: 16 MiB of gradients
constexpr std::int64_t kBlocks = 4;

step::KernelProfile profile(double peer_bytes, bool cuda = true) {
  step::KernelProfile out;
  out.cuda = cuda;
  out.rates = {1e15, 1e15, 1e12, 0, 0};
  out.peers.fill({peer_bytes, 0});
  return out;
}

step::TrainedUnit<CountedTensor> unit(const std::string& name, std::int64_t block) {
  step::TrainedUnit<CountedTensor> out;
  out.unit.name = name;
  out.unit.block = block;
  out.unit.elements = kElements;
  if (name == "embed") {
    spec::Parameter& table = out.unit.parameters.emplace_back();
    table.name = "wte";
    table.shape = {kElements};
  }
  out.weights = out.gradients = CountedTensor::outside({kElements}, step::Dtype::kFloat32);
  return out;
}

std::vector<step::TrainedUnit<CountedTensor>> units() {
  std::vector<step::TrainedUnit<CountedTensor>> out = {unit("embed", -1)};
  for (std::int64_t b = 0; b < kBlocks; ++b) out.push_back(unit("block." + std::to_string(b), b));
  out.push_back(unit("head", -1));
  return out;
}

// A backward pass of groups, of which every unit takes `seconds`.
step::Work backward(const step::KernelProfile& profile, const spec::DataParallel& ranks,
                    double seconds, int groups = 1) {
  NoMemory memory;
  step::CountingOps ops(memory, profile, 2);
  const auto all = units();
  CountedPeers peers(ops, ranks, all, all, 4);
  const auto bytes = static_cast<std::int64_t>(seconds * 1e12);
  const auto work = [&](step::UnitKey key) {
    // Read and written.
    ops.scale_(CountedTensor::outside({bytes / 2}, step::Dtype::kBool), 2);
    peers.take(key);
  };
  ops.repeat(groups, [&](std::int64_t) {
    peers.begin_group(false);
    work(key_of(Table::kHead));
    for (std::int64_t b = kBlocks; b-- > 0;) work(b);
    work(key_of(Table::kEmbedding));
  });
  peers.finish();
  return ops.work();
}

const double kBytes = (kBlocks + 2) * 4.0 * kElements;

TEST(CountedPeers, BackwardHidesAllButTheLastUnit) {
  const step::Work work = backward(profile(kBytes / 6), {2, 0}, 2);
  EXPECT_NEAR(work.seconds, 12, 0.01);
  EXPECT_NEAR(work.peer_seconds, 1, 0.01);
  EXPECT_NEAR(work.elapsed(), 13, 0.02);
  EXPECT_NEAR(work.peer_bytes, kBytes, 1);
}

TEST(CountedPeers, WhatIsLongerThanBackwardIsVisible) {
  // A unit takes four seconds on the lane, which begins when the head is done.
  const step::Work work = backward(profile(kBytes / 24), {2, 0}, 1);
  EXPECT_NEAR(work.elapsed(), 1 + 24, 0.02);
  EXPECT_NEAR(work.peer_seconds, 1 + 24 - 6, 0.02);
}

// Whether the last group was counted, or left out of a plan.
TEST(CountedPeers, WhatLeavesForTheHostIsWaitedFor) {
  for (const bool counted : {true, false}) {
    NoMemory memory;
    step::CountingOps ops(memory, profile(kBytes / 6), 2);
    auto all = units();
    for (auto& unit : all) unit.on_host = unit.unit.block >= 0;
    CountedPeers peers(ops, {2, 0}, all, all, 4);
    peers.begin_group(true);
    for (std::int64_t b = counted ? kBlocks : 0; b-- > 0;)
      peers.sum(b, all[static_cast<std::size_t>(b) + 1].gradients);
    peers.finish();
    EXPECT_NEAR(ops.work().peer_seconds, kBlocks + 2, 0.01);
    EXPECT_NEAR(ops.work().peer_bytes, kBytes, 1);
  }
}

TEST(CountedPeers, OnlyTheLastGroupHides) {
  const step::Work one = backward(profile(kBytes / 24), {2, 0}, 1);
  for (const int groups : {2, 5}) {
    const step::Work work = backward(profile(kBytes / 24), {2, 0}, 1, groups);
    EXPECT_NEAR(work.seconds, 6 * groups, 0.01);
    EXPECT_NEAR(work.peer_seconds, one.peer_seconds, 0.02) << groups;
    EXPECT_NEAR(work.peer_bytes, kBytes, 1);
  }
}

TEST(CountedPeers, ASliceIsSentOnceAndMoreRanksSendMore) {
  EXPECT_NEAR(backward(profile(1e12), {2, 1}, 1).peer_bytes, kBytes / 2, 1);
  EXPECT_NEAR(backward(profile(1e12), {8, 0}, 1).peer_bytes, kBytes * 2 * 7 / 8, 1);
}

TEST(CountedPeers, SlicesAreSummedOverTheirReplicas) {
  step::KernelProfile rates = profile(1e9);
  rates.peers[static_cast<std::size_t>(spec::Axis::kReplicas)] = {1e6, 0.5, 0.25};
  NoMemory memory;
  step::CountingOps ops(memory, rates, 1);
  const spec::DataParallel ranks{8, 1, /*replicas=*/4};
  EXPECT_EQ(ranks.shards(), 2);
  sum_over_replicas(ops, ranks, 1e6);
  EXPECT_NEAR(ops.work().peer_bytes, 2 * 3.0 / 4 * 1e6, 1);
  EXPECT_NEAR(ops.work().peer_seconds, 0.5 + 2 * 0.25 + 1.5, 1e-9);
  sum_over_replicas(ops, {8, 1}, 1e6);  // one replica
  EXPECT_NEAR(ops.work().peer_bytes, 2 * 3.0 / 4 * 1e6, 1);
}

TEST(CountedPeers, OnTheHostNothingHidesThem) {
  const step::Work work = backward(profile(kBytes / 6, false), {2, 0}, 2);
  EXPECT_NEAR(work.peer_seconds, 6, 0.01);
}

TEST(CountedPeers, WithoutRatesThereAreNoSeconds) {
  EXPECT_EQ(backward(profile(0), {2, 0}, 2).peer_seconds, 0);
}

Bytes bytes_of(const spec::Mesh& mesh, const NcclSettings& settings = {}) {
  return nccl_bytes({{mesh}}, mesh, settings);
}
spec::Mesh mesh_of(std::int64_t data, std::int64_t tensor, std::int64_t context = 1) {
  return spec::Mesh()
      .set(spec::Axis::kData, data)
      .set(spec::Axis::kTensor, tensor)
      .set(spec::Axis::kContext, context);
}

TEST(NcclMemory, IsWhatWasMeasured) {
  EXPECT_EQ(bytes_of(mesh_of(1, 1)), Bytes());
  EXPECT_EQ(bytes_of(mesh_of(2, 1)), 846_MiB);
  EXPECT_EQ(bytes_of(mesh_of(1, 2)), 846_MiB);
  EXPECT_EQ(bytes_of(mesh_of(2, 1), {8, 8}), (180 + 48 + 186 + 96) * 1_MiB);
  EXPECT_EQ(bytes_of(spec::Mesh().set(spec::Axis::kPipe, 2)), 1292_MiB);
  // Two axes have a communicator each besides that of all.
  EXPECT_EQ(bytes_of(mesh_of(2, 2)), (846 + 2 * 486) * 1_MiB);
  // Copies along context alone are that axis; along data and context they are all ranks, or have one more.
  EXPECT_EQ(bytes_of(mesh_of(1, 1, 2)), 846_MiB);
  EXPECT_EQ(bytes_of(mesh_of(1, 2, 2)), (846 + 2 * 486) * 1_MiB);
  EXPECT_EQ(bytes_of(mesh_of(2, 1, 2)), (846 + 2 * 486) * 1_MiB);
  EXPECT_EQ(bytes_of(mesh_of(2, 2, 2)), (846 + 4 * 486) * 1_MiB);
  // Ranks that slice together and replicas of them have one each, unless they are those of an axis.
  EXPECT_EQ(bytes_of(mesh_of(4, 1).set_shards(2)), (846 + 2 * 486) * 1_MiB);
  EXPECT_EQ(bytes_of(mesh_of(4, 2).set_shards(2)), (846 + 4 * 486) * 1_MiB);
  EXPECT_EQ(bytes_of(mesh_of(2, 1, 2).set_shards(2)), bytes_of(mesh_of(2, 1, 2)));
  // Keys that pass round a ring are sent, as between stages.
  EXPECT_EQ(nccl_bytes({{mesh_of(1, 1, 2), true}}, mesh_of(1, 1, 2), {}), 1292_MiB);
}

TEST(NcclMemory, HasAGroupOfThoseThatDivideTheModelOnlyWhereItGenerates) {
  EXPECT_EQ(nccl_bytes({{mesh_of(4, 1)}}, mesh_of(2, 2), {}), bytes_of(mesh_of(4, 1)) + 486_MiB);
  // All ranks are there already.
  EXPECT_EQ(nccl_bytes({{mesh_of(4, 1)}}, mesh_of(1, 4), {}), bytes_of(mesh_of(4, 1)));
}

TEST(NcclMemory, ModelsShareGroupsOfTheSameRanks) {
  const spec::Mesh whole = mesh_of(8, 1), parts = mesh_of(4, 2), more = mesh_of(2, 4);
  const auto bytes = [](const std::vector<spec::Mesh>& models) {
    std::vector<ModelRanks> all;
    all.reserve(models.size());
    for (const spec::Mesh& mesh : models) all.push_back({mesh});
    return nccl_bytes(all, models.front(), {});
  };
  EXPECT_EQ(bytes({whole, whole, whole}), bytes_of(whole));
  EXPECT_EQ(bytes({whole, parts}), bytes_of(parts));
  EXPECT_EQ(bytes({whole, parts, parts}), bytes_of(parts));
  EXPECT_EQ(bytes({parts, more}), bytes_of(parts) + 2 * 486_MiB);
  // Slices of two neighbours are other groups than parts of a model, which talk at other times.
  EXPECT_EQ(bytes({mesh_of(8, 1).set_shards(2), parts}),
            bytes_of(mesh_of(8, 1).set_shards(2)) + 486_MiB);
  // Ranks two apart: replicas of one model, copies of another.
  EXPECT_EQ(spec::groups_of({mesh_of(8, 1).set_shards(2), parts}, whole).size(), 3U);
  // Keys pass round among the ranks of each model's sequences.
  const spec::Mesh ring = mesh_of(4, 1, 2), ring_of_parts = mesh_of(2, 2, 2);
  EXPECT_EQ(nccl_bytes({{ring, true}, {ring_of_parts, true}}, ring, {}),
            bytes({ring, ring_of_parts}) + (62 + 2 * 12 * 32) * 1_MiB);
  EXPECT_EQ(nccl_bytes({{ring}, {ring_of_parts, true}}, ring, {}),
            bytes({ring, ring_of_parts}) + (62 + 12 * 32) * 1_MiB);
}

TEST(PeersMemory, HasSlotsWhereGpusWriteIntoEachOthersMemory) {
  struct Case {
    std::int64_t nodes, gpus, tensor;
    const char* transport;
    bool slots;
  };
  for (const Case& c :
       {Case{1, 2, 1, "auto", true}, Case{1, 2, 1, "nccl", false}, Case{1, 1, 1, "auto", false},
        Case{1, 4, 1, "auto", false}, Case{1, 4, 1, "p2p", true}, Case{1, 4, 2, "auto", true},
        Case{2, 1, 1, "auto", false}, Case{2, 2, 2, "auto", false}, Case{1, 2, 2, "p2p", false}}) {
    spec::Job job;
    job.task = spec::Task::kSft;
    job.trainer.nnodes = c.nodes;
    job.trainer.n_gpus_per_node = c.gpus;
    job.parallel.tensor_model_parallel_size = c.tensor;
    job.parallel.transport = c.transport;
    const Bytes slots = c.slots ? kCopyLaneBytes : Bytes();
    EXPECT_EQ(peers_bytes(job, {}), bytes_of(job.mesh()) + slots)
        << c.nodes << " x " << c.gpus << ", tensor " << c.tensor << ", " << c.transport;
  }
}

TEST(NcclMemory, FollowsTheProcessesLimitOfCtas) {
  ::setenv("NCCL_MAX_CTAS", "8", 1);
  EXPECT_EQ(NcclSettings::of_process().channels, 8);
  EXPECT_EQ(NcclSettings::of_process().peer_channels, 8);
  ::setenv("NCCL_MAX_CTAS", "many", 1);
  EXPECT_EQ(NcclSettings::of_process().channels, 24);
  ::unsetenv("NCCL_MAX_CTAS");
  EXPECT_EQ(NcclSettings::of_process().peer_channels, 32);
}

}  // namespace
}  // namespace neap::plan

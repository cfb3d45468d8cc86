// Blocks that come from elsewhere, on the clocks of a plan.
#include "plan/counting/counted_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/plan/no_memory.h"

namespace neap::plan {
namespace {

using step::CountedTensor;

constexpr double kDisk = 1e6;     // bytes a second
constexpr double kMemory = 1e12;  // of the device

// Passes forward through blocks of which each rank has slices on disk.
step::Work forward(std::int64_t blocks, double read_seconds, double compute_seconds, int passes = 1,
                   std::int64_t counted_blocks = 2) {
  NoMemory memory;
  step::KernelProfile profile;
  profile.cuda = true;
  profile.rates = {1e15, 1e15, kMemory, 0, 0};
  profile.disk = {kDisk, kDisk, kDisk};
  step::CountingOps ops(memory, profile, counted_blocks);
  step::Weights<CountedTensor> weights;
  weights.blocks.resize(static_cast<std::size_t>(blocks));
  CountedLayers layers;
  layers.blocks.assign(weights.blocks.size(), {"block", Bytes(), 2_MiB});
  layers.own.assign(weights.blocks.size(), Bytes(static_cast<std::uint64_t>(read_seconds * kDisk)));
  layers.ranks = spec::DataParallel{2, 3};
  layers.home = spec::Home::kDisk;
  layers.overlaps = true;
  {
    CountedSlots slots(ops, weights, layers);
    CountedBlocks source(ops, weights, &slots, nullptr);
    for (int p = 0; p < passes; ++p) {
      source.expect(step::Sweep::kForward, 1, {{0, blocks}});
      ops.repeat(blocks, [&](std::int64_t b) {
        const auto block = static_cast<std::size_t>(b);
        (void)source.use(block, step::BlockUse::kRead);
        const auto moved = static_cast<std::int64_t>(compute_seconds * kMemory);
        ops.scale_(CountedTensor::outside({moved / 2}, step::Dtype::kBool), 2);  // read and written
        source.release(block);
      });
    }
  }
  return ops.work();
}

// Both slots are filled before the first block computes, and the next one is read from then on. So two reads wait for
// nothing, and behind the last two blocks there is nothing to read.
double seconds_of_run(std::int64_t blocks, double read, double compute) {
  double disk = 2 * read, now = disk;
  for (std::int64_t b = 0; b < blocks; ++b) {
    now += compute;
    if (b + 2 >= blocks) continue;
    disk += read;
    now = std::max(now, disk);
  }
  return now;
}

TEST(CountedBlocks, SlicesOnDiskAreReadWhileTheBlockBeforeThoseInTheSlotsComputes) {
  for (const double read : {0.5, 1.0, 3.0}) {
    for (const std::int64_t blocks : {2, 3, 8}) {
      for (const std::int64_t counted : {2, 16}) {
        const step::Work work = forward(blocks, read, 1, 1, counted);
        EXPECT_NEAR(work.elapsed(), seconds_of_run(blocks, read, 1), 0.01)
            << read << ' ' << blocks << ' ' << counted;
        EXPECT_NEAR(work.disk_read, static_cast<double>(blocks) * read * kDisk, 1);
      }
    }
  }
  EXPECT_NEAR(forward(1, 3, 1).elapsed(), 4, 0.01);  // the only one
}

TEST(CountedBlocks, EachSweepWaitsForItsFirstSlices) {
  for (const double read : {0.5, 3.0})
    EXPECT_NEAR(forward(5, read, 1, 3).elapsed(), 3 * seconds_of_run(5, read, 1), 0.01) << read;
}

}  // namespace
}  // namespace neap::plan

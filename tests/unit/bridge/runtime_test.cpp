// The bridge on the host device: every tensor of a phase is counted, regions keep address and contents.
#include "bridge/runtime.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "unit/bridge/small_plan.h"

namespace neap::bridge {
namespace {

using ::testing::HasSubstr;

class RuntimeTest : public ::testing::Test {
 protected:
  std::unique_ptr<Runtime> make(Bytes capacity) {
    job_.device.kind = "cpu";
    job_.device.memory = capacity;
    return Runtime::make(job_, choose_run_device(job_.device), small_plan(capacity), nullptr);
  }
  spec::Job job_;
};

TEST_F(RuntimeTest, RegionsKeepAddressAndContentsAcrossPhases) {
  const auto runtime = make(32_MiB);
  const at::Tensor weights = runtime->region(plan::kWeights, "first", at::kFloat);
  const at::Tensor frozen = runtime->region(plan::kReferenceWeights, "second", at::kFloat);
  const at::Tensor optimizer = runtime->region(plan::kOptimizer, "first", at::kFloat);
  EXPECT_EQ(weights.numel(), (4_MiB).count() / 4);
  {
    const auto hold = runtime->hold({plan::kWeights, plan::kReferenceWeights, plan::kOptimizer});
    weights.fill_(1);
    frozen.fill_(2);
    optimizer.fill_(3);
  }
  const void* before = frozen.data_ptr();
  for (int step = 0; step < 3; ++step) {
    {
      const auto phase = runtime->phase(kLook);
      EXPECT_EQ(frozen.sum().item<float>(), 2.0F * static_cast<float>(frozen.numel()));
      EXPECT_EQ(weights[5].item<float>(), 1.0F + static_cast<float>(step));
    }
    const auto phase = runtime->phase(kLearn);
    weights.add_(1);
    optimizer.add_(1);
    EXPECT_EQ(optimizer[7].item<float>(), 4.0F + static_cast<float>(step));
  }
  EXPECT_EQ(frozen.data_ptr(), before);
  const auto measured = runtime->take_measurements();
  ASSERT_EQ(measured.size(), 6U);
  EXPECT_EQ(measured[0].phase, kLook);
  EXPECT_EQ(measured[4].persistent, 16_MiB);
  EXPECT_EQ(measured[2].moved(), 16_MiB)
      << "the optimizer leaves and the frozen tag comes back, 8 MiB each";
  EXPECT_EQ(measured[3].moved(), 8_MiB) << "a frozen tag is not copied out twice";
  EXPECT_LE(runtime->peak(), 32_MiB);
}

TEST_F(RuntimeTest, TensorsOfAPhaseComeFromItsPoolAndTheirPagesGoBack) {
  const auto runtime = make(64_MiB);
  {
    const auto phase = runtime->phase(kLook);
    const at::Tensor a = at::empty({(5_MiB).count()}, at::kByte);
    const at::Tensor b = a.clone();
    const HostScope scope;
    const at::Tensor outside = at::empty({(30_MiB).count()}, at::kByte);
  }
  const auto measured = runtime->take_measurements();
  ASSERT_EQ(measured.size(), 1U);
  EXPECT_EQ(measured[0].transient_allocated, 10_MiB);
  EXPECT_GE(measured[0].transient_reserved, 10_MiB);
  EXPECT_LT(measured[0].transient_reserved, 30_MiB)
      << "what a HostScope makes is not on the device";
  EXPECT_EQ(runtime->arena().stats().physical - runtime->arena().stats().page_store, 16_MiB)
      << "only the tags stay";
}

TEST_F(RuntimeTest, APhaseThatFollowsItselfBeginsWithThePagesOfThePool) {
  plan::MemoryPlan plan = small_plan(32_MiB);
  plan.phases[0].pool_for = {kLook};
  job_.device.kind = "cpu";
  job_.device.memory = 32_MiB;
  const auto runtime = Runtime::make(job_, choose_run_device(job_.device), plan, nullptr);
  const auto taken = [&] {
    return runtime->arena().stats().physical - runtime->arena().stats().page_store;
  };
  const auto run = [&](spec::PhaseId id) {
    const auto phase = runtime->phase(id);
    const at::Tensor t = at::empty({(6_MiB).count()}, at::kByte);
  };
  run(kLook);
  EXPECT_EQ(taken(), 22_MiB) << "the tags and the pool";
  run(kLook);
  EXPECT_EQ(taken(), 22_MiB) << "the same pages";
  { const auto hold = runtime->hold({plan::kWeights, plan::kReferenceWeights}); }
  EXPECT_EQ(taken(), 22_MiB) << "they are there";
  { const auto hold = runtime->hold({plan::kOptimizer}); }
  EXPECT_EQ(taken(), 16_MiB) << "a tag came";
  run(kLook);
  run(kLearn);
  EXPECT_EQ(taken(), 16_MiB) << "another phase, which does not keep its own";
  const auto measured = runtime->take_measurements();
  ASSERT_EQ(measured.size(), 4U);
  for (const PhaseMeasurement& m : measured) {
    EXPECT_EQ(m.transient_reserved, 6_MiB);
    EXPECT_EQ(m.peak, 22_MiB);
  }
}

TEST_F(RuntimeTest, APoolStaysOnlyForThePhasesThatThePlanNames) {
  plan::MemoryPlan plan = small_plan(32_MiB);
  plan.tags[2].need = {plan::Need::kOptional, plan::Need::kOptional};
  plan.schedule[1] = plan.schedule[0];  // no tag moves
  plan.phases[0].pool_for = {kLearn};
  job_.device.kind = "cpu";
  job_.device.memory = 32_MiB;
  const auto runtime = Runtime::make(job_, choose_run_device(job_.device), plan, nullptr);
  // Returns the bytes of tags and pool at the phase's begin.
  const auto run = [&](spec::PhaseId id) {
    const auto phase = runtime->phase(id);
    const arena::Stats stats = runtime->arena().stats();
    const at::Tensor t = at::empty({(6_MiB).count()}, at::kByte);
    return stats.physical - stats.page_store;
  };
  EXPECT_EQ(run(kLook), 16_MiB);
  EXPECT_EQ(run(kLook), 16_MiB) << "the plan does not name it";
  EXPECT_EQ(run(kLearn), 22_MiB);
  EXPECT_EQ(run(kLearn), 16_MiB) << "this phase keeps none";
}

TEST_F(RuntimeTest, OutOfMemoryNamesNeedFreeAndHolders) {
  const auto runtime = make(32_MiB);
  const auto phase = runtime->phase(kLook);
  try {
    const at::Tensor too_much = at::empty({(40_MiB).count()}, at::kByte);
    FAIL() << "40 MiB fit into 16";
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), ErrorCode::kOutOfDeviceMemory);
    EXPECT_THAT(e.what(), HasSubstr("40 MiB"));
    EXPECT_THAT(e.what(), HasSubstr("phase \"actor_logp\""));
    EXPECT_THAT(e.what(), HasSubstr("16 MiB of 32 MiB is free"));
    EXPECT_THAT(e.what(), HasSubstr("weights"));
  }
  const at::Tensor fits = at::empty({(8_MiB).count()}, at::kByte);
  fits.zero_();
}

TEST_F(RuntimeTest, TensorsMayOutliveTheirPhaseAndTheRuntime) {
  at::Tensor survivor;
  {
    const auto runtime = make(64_MiB);
    {
      const auto phase = runtime->phase(kLook);
      survivor = at::full({1024}, 7.0F, at::kFloat);
    }
    EXPECT_EQ(survivor.sum().item<float>(), 7168.0F);
  }
  EXPECT_EQ(survivor.sum().item<float>(), 7168.0F) << "its pages live as long as it does";
  survivor.reset();
  const auto next = make(64_MiB);
  const auto phase = next->phase(kLearn);
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3.0F);
}

TEST_F(RuntimeTest, RuntimesTakeTurnsAndLibtorchKeepsItsAllocator) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  const auto one = make(64_MiB);
  const auto other = make(64_MiB);
  EXPECT_EQ(c10::GetCPUAllocator(), before);
  at::Tensor survivor;
  for (Runtime* runtime : {one.get(), other.get(), one.get()}) {
    const auto phase = runtime->phase(kLook);
    EXPECT_NE(c10::GetCPUAllocator(), before);
    Runtime& waiting = runtime == one.get() ? *other : *one;
    EXPECT_THROW((void)waiting.phase(kLook), Error) << "one phase at a time in a process";
    survivor = at::full({1000}, 3.0F, at::kFloat);  // and the one before dies in another's phase
    EXPECT_TRUE(phase->close().ok());
    EXPECT_EQ(c10::GetCPUAllocator(), before);
  }
  EXPECT_EQ(one->take_measurements().size(), 2U);
  ASSERT_EQ(other->take_measurements().at(0).transient_allocated, 4096_B);
  EXPECT_EQ(survivor.sum().item<float>(), 3000.0F);
}

TEST_F(RuntimeTest, AContextHasItsThreadsOnlyWhileItIsEntered) {
  at::set_num_threads(3);
  job_.device.kind = "cpu";
  job_.device.memory = 64_MiB;
  plan::DeviceChoice choice = choose_run_device(job_.device);
  const auto make_with = [&](std::int64_t threads) {
    choice.target.threads = threads;
    return Runtime::make(job_, choice, small_plan(64_MiB), nullptr);
  };
  const auto one = make_with(1), two = make_with(2);
  EXPECT_EQ(at::get_num_threads(), 3);
  {
    const DeviceContext::Entered entered(one->context());
    EXPECT_EQ(at::get_num_threads(), 1);
    const auto phase = two->phase(kLook);
    EXPECT_EQ(at::get_num_threads(), 2);
    EXPECT_TRUE(phase->close().ok());
    EXPECT_EQ(at::get_num_threads(), 1);
  }
  {
    const auto hold = two->hold({plan::kWeights});
    EXPECT_EQ(at::get_num_threads(), 2);
  }
  EXPECT_EQ(at::get_num_threads(), 3);
}

// What kernels' worker threads allocate is scratch, whose size depends on the machine.
TEST_F(RuntimeTest, OnlyThePhasesThreadTakesItsMemory) {
  const auto runtime = make(64_MiB);
  {
    const auto phase = runtime->phase(kLook);
    at::Tensor mine = at::full({1000}, 1.0F, at::kFloat);
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) {
          const at::Tensor a = at::full({250000 + i}, 1.0F, at::kFloat);
          ASSERT_EQ(a[i].item<float>(), 1.0F);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::thread([t = std::move(mine)]() mutable { t.reset(); }).join();  // freed by another thread
  }
  const Bytes taken = runtime->take_measurements().at(0).transient_allocated;
  EXPECT_GE(taken, 4000_B);
  EXPECT_LT(taken, 100_KiB);
}

TEST_F(RuntimeTest, APhaseEndsOnceAndSaysHow) {
  const auto runtime = make(32_MiB);
  const auto phase = runtime->phase(kLook);
  EXPECT_TRUE(phase->close().ok());
  EXPECT_TRUE(phase->close().ok());
  EXPECT_EQ(runtime->take_measurements().size(), 1U);
  const auto next = runtime->phase(kLearn);
  EXPECT_THROW((void)runtime->phase(kLook), Error) << "one phase at a time";
}

TEST_F(RuntimeTest, UnknownIdsAreErrorsThatListWhatIsThere) {
  const auto runtime = make(32_MiB);
  EXPECT_THROW((void)runtime->region(plan::kWeights, "nothing", at::kFloat), Error);
  try {
    (void)runtime->phase(spec::PhaseId::kValues);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("no phase \"values\"; it has actor_logp, train_actor"));
  }
}

}  // namespace
}  // namespace neap::bridge

// The bridge on a card: libtorch's temporaries and the arena's regions under one ceiling.
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/runtime.h"
#include "bridge/torch_cuda.h"
#include "bridge/torch_cuda_memory.h"
#include "unit/bridge/small_plan.h"

namespace neap::bridge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// small_plan keeps 16 MiB of it in each phase.
constexpr Bytes kCeiling = 256_MiB;

class RuntimeOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch_cuda().available) GTEST_SKIP() << torch_cuda().reason;
    job_.device.kind = "cuda";
    job_.device.memory = kCeiling;
    plan_ = small_plan(kCeiling);
  }
  [[nodiscard]] std::unique_ptr<Runtime> make() {
    return Runtime::make(job_, choose_run_device(job_.device), plan_, nullptr);
  }
  [[nodiscard]] static at::Tensor take(Bytes bytes) {
    return at::empty({static_cast<std::int64_t>(bytes.count())},
                     at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  }
  /// Bytes of cuBLAS' workspaces: what an empty phase has.
  [[nodiscard]] static Bytes workspaces(Runtime& runtime) {
    EXPECT_TRUE(runtime.phase(kLook)->close().ok());
    const Bytes bytes = runtime.take_measurements().at(0).transient_allocated;
    EXPECT_LT(bytes, 100_MiB);
    return bytes;
  }

  spec::Job job_;
  plan::MemoryPlan plan_;
};

TEST_F(RuntimeOnGpu, TemporariesFitBesideTheRegions) {
  const auto runtime = make();
  const Bytes held = workspaces(*runtime);
  {
    const auto phase = runtime->phase(kLook);
    const at::Tensor t = take(100_MiB);
    at::Tensor(t).fill_(7);
    EXPECT_EQ(t[12345].item<int>(), 7);
  }
  const auto measured = runtime->take_measurements();
  ASSERT_EQ(measured.size(), 1U);
  EXPECT_EQ(measured[0].persistent, 16_MiB);
  EXPECT_EQ(measured[0].transient_allocated, 100_MiB + held);
  EXPECT_LE(measured[0].peak, kCeiling);
  EXPECT_TRUE(runtime->last_oom().ok());
}

TEST_F(RuntimeOnGpu, PhasesComputeOnTheJobsStreamInOrderWithTheStreamBefore) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const at::Device card(at::kCUDA, 0);
  const auto current = [&] {
    const void* const handle = guard.getStreamNativeHandle(guard.getStream(card));
    return static_cast<device::StreamId>(reinterpret_cast<std::uintptr_t>(handle));
  };
  const auto runtime = make(), other = make();
  EXPECT_NE(runtime->context().stream(), device::StreamId::kDefault);
  EXPECT_EQ(runtime->context().stream(), other->context().stream())
      << "each stream has a workspace of cuBLAS";
  const device::StreamId before = current();
  // Long enough that a stream that does not wait reads what was there before.
  const at::Tensor t = at::zeros({32 << 20}, at::TensorOptions().dtype(at::kInt).device(card));
  for (int i = 0; i < 50; ++i) at::Tensor(t).add_(1);
  at::Tensor first, second;
  {
    const DeviceContext::Entered entered(runtime->context());
    EXPECT_EQ(current(), runtime->context().stream());
    first = t.max();
    for (int i = 0; i < 50; ++i) at::Tensor(t).add_(1);
  }
  EXPECT_EQ(current(), before);
  second = t.min();
  EXPECT_EQ(first.item<int>(), 50);
  EXPECT_EQ(second.item<int>(), 100);
}

TEST_F(RuntimeOnGpu, TheAllocatorIsHeldToTheCeilingAndTheErrorNamesHolders) {
  const auto runtime = make();
  {
    const auto phase = runtime->phase(kLook);
    const at::Tensor kept = take(80_MiB);
    EXPECT_THROW((void)take(162_MiB), c10::OutOfMemoryError)
        << "16 + 80 + 162 are over the ceiling";
  }
  const Status oom = runtime->last_oom();
  ASSERT_EQ(oom.code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_THAT(oom.message(),
              AllOf(HasSubstr("actor_logp"), HasSubstr("162 MiB"), HasSubstr("actor.weights"),
                    HasSubstr("reference.weights"), HasSubstr("temporaries")));
  // What was refused took nothing: the next phase has all its room.
  const auto phase = runtime->phase(kLearn);
  EXPECT_NO_THROW((void)take(150_MiB));
}

TEST_F(RuntimeOnGpu, APhaseThatUsesTheSegmentsSlackFailsTheRun) {
  const auto runtime = make();
  const Bytes held = workspaces(*runtime);
  const auto phase = runtime->phase(kLook);
  { const at::Tensor t = take(kCeiling - 16_MiB - held + 2_MiB); }
  EXPECT_EQ(phase->close().code(), ErrorCode::kOutOfDeviceMemory);
  EXPECT_TRUE(phase->close().ok()) << "the second call does nothing";
}

TEST_F(RuntimeOnGpu, TheLimitIsOfThePhaseAlone) {
  const auto runtime = make();
  {
    const auto phase = runtime->phase(kLook);
    EXPECT_THROW((void)take(1_GiB), c10::OutOfMemoryError);
    EXPECT_EQ(phase->close().code(), ErrorCode::kOk);
  }
  EXPECT_NO_THROW((void)take(1_GiB)) << "of another program part, or a runtime without a ceiling";
  const Status refused = runtime->last_oom();
  EXPECT_THAT(refused.message(), HasSubstr("1 GiB"));
  const auto other = make();
  EXPECT_TRUE(other->phase(kLook)->close().ok());
  EXPECT_TRUE(other->last_oom().ok()) << "what the first was refused is not the second's";
}

TEST_F(RuntimeOnGpu, WithoutACeilingTheCardIsTheLimit) {
  job_.device.memory = Bytes(0);
  plan_.capacity = Bytes(0);
  const auto runtime = make();
  {
    const auto phase = runtime->phase(kLook);
    EXPECT_NO_THROW((void)take(1_GiB));
    EXPECT_THROW((void)take(4096_GiB), c10::OutOfMemoryError);
  }
  const std::string said(runtime->last_oom().message());
  EXPECT_THAT(said, AllOf(HasSubstr("4 TiB"), ::testing::Not(HasSubstr("of 0 B"))));
}

// Libraries take more of the card than a plan has for them.
class PagesKeptForTags : public RuntimeOnGpu, public ::testing::WithParamInterface<bool> {
 protected:
  void TearDown() override {
    if (torch_cuda().available) c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache();
  }
};

TEST_P(PagesKeptForTags, AreFreedIfThePhaseNeedsThem) {
  job_.device.memory = Bytes(0);
  plan_.capacity = Bytes(0);
  plan_.tags[1].need = {plan::Need::kOptional, plan::Need::kOptional};
  plan_.schedule[0].resident = {true, false, false};
  plan_.phases[0].transient = workspaces(*make()) + 60_MiB;
  if (GetParam()) plan_.phases[0].pool_for = {kLook};
  const auto runtime = make();
  const auto free = [&] { return runtime->context().device()->memory()->free; };
  const auto store = [&] { return runtime->arena().stats().page_store; };
  EXPECT_TRUE(runtime->phase(kLearn)->close().ok());
  {
    const auto phase = runtime->phase(kLook);
    (void)take(2_MiB);
  }
  ASSERT_EQ(store(), 8_MiB) << "the optimizer's";
  std::vector<at::Tensor> others{take(free() - 60_MiB)};
  while (free() > 26_MiB) others.push_back(take(1_MiB));
  const auto phase = runtime->phase(kLook);
  EXPECT_EQ(store(), Bytes());
  EXPECT_NO_THROW((void)take(6_MiB));
}
INSTANTIATE_TEST_SUITE_P(PoolOfThePhaseBefore, PagesKeptForTags, ::testing::Bool());

}  // namespace
}  // namespace neap::bridge

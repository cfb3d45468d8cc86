#include "plan/rates/planned_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arena/host_memory.h"
#include "plan/rates/gpu_catalog.h"
#include "plan/results/host_share.h"

namespace neap::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

const CudaGpus kNoGpu{0, "no driver"};

spec::Job job_of(const std::string& model, std::vector<std::string> keys = {}) {
  keys.insert(keys.begin(),
              {"task=sft", "actor_rollout_ref.model.path=" NEAP_SOURCE_DIR "/" + model});
  spec::Job job;
  const Status status = spec::Job::load({}, keys, job);
  EXPECT_TRUE(status.ok()) << status.message();
  return job;
}
spec::Job large(std::vector<std::string> keys = {}) {
  return job_of("tests/golden/plan/models/qwen7", std::move(keys));
}
spec::Job small() {
  return job_of("examples/reviews/model");
}
PlannedDevice device_of(const spec::Job& job, const DeviceQuestion& asked) {
  Result<PlannedDevice> device = device_to_plan_for(job, asked, kNoGpu);
  EXPECT_TRUE(device.ok()) << device.status().message();
  return *std::move(device);
}

TEST(PlannedDevice, ALargeModelIsPlannedForAGpuWhereThereIsNone) {
  const PlannedDevice device = device_of(large(), {});
  EXPECT_TRUE(device.choice.target.cuda);
  EXPECT_THAT(device.heading(), HasSubstr("the GPU in bfloat16 (assumed"));
  EXPECT_THAT(device.assumed, HasSubstr("7.62 billion parameters"));
  EXPECT_THAT(device.assumed, HasSubstr("--gpu NAME"));
  EXPECT_EQ(device.to_json(large())["assumed"], device.assumed);
  EXPECT_EQ(device.to_json(large())["dtype"], "bfloat16");
}

TEST(PlannedDevice, ASmallModelIsPlannedForTheHostAndThatIsSaid) {
  const PlannedDevice device = device_of(small(), {});
  EXPECT_FALSE(device.choice.target.cuda);
  EXPECT_THAT(device.heading(), HasSubstr("in float32 (assumed, because this machine has no GPU"));
  EXPECT_TRUE(device.context.is_zero());
}

TEST(PlannedDevice, NothingIsAssumedOfWhatIsNamed) {
  EXPECT_TRUE(device_of(large(), {.gpu = "a100"}).assumed.empty());
  const PlannedDevice host = device_of(large({"device.kind=cpu"}), {});
  EXPECT_TRUE(host.assumed.empty());
  EXPECT_FALSE(host.choice.target.cuda);
  EXPECT_FALSE(device_of(large({"device.kind=cuda"}), {}).assumed.empty());
  DeviceQuestion model;
  model.model = true;
  EXPECT_TRUE(device_of(small(), model).choice.target.cuda);
}

TEST(PlannedDevice, OfACardsSizeTheContextIsSubtracted) {
  const auto planned = [](const DeviceQuestion& asked) {
    return device_of(large(), asked).choice.target.capacity;
  };
  const Bytes free = find_card("rtx4090")->free;
  EXPECT_LT(free, 24_GiB);
  EXPECT_EQ(planned({.gpu = "rtx4090"}), free - kCudaContext);
  EXPECT_EQ(planned({.gpu = "rtx4090", .card = 24_GiB}), free - kCudaContext);
  EXPECT_EQ(planned({.gpu = "rtx4090", .card = 20_GiB}), 20_GiB - kCudaContext);
  // Of no card in particular: what all of that size have.
  EXPECT_EQ(planned({.card = 24_GiB}), find_card("l4")->free - kCudaContext);
  EXPECT_EQ(planned({.card = 23_GiB}), 23_GiB - kCudaContext);
  // A capacity is the job's own.
  EXPECT_EQ(planned({.gpu = "rtx4090", .capacity = 20_GiB}), 20_GiB);
  EXPECT_THAT(
      device_of(large(), {.gpu = "rtx4090", .card = 24_GiB}).sizes,
      HasSubstr("23.60 GiB that are free on the RTX 4090, less 800 MiB for CUDA's context"));
  EXPECT_THAT(device_of(large(), {.gpu = "rtx4090"}).sizes, HasSubstr("less 800 MiB"));
  EXPECT_TRUE(device_of(large({"device.memory=9GiB"}), {.gpu = "rtx4090"}).sizes.empty());
  const auto tiny = device_to_plan_for(large(), {.card = 700_MiB}, kNoGpu);
  ASSERT_FALSE(tiny.ok());
  EXPECT_THAT(tiny.status().message(), HasSubstr("leave nothing for a job"));
}

TEST(PlannedDevice, AGpuWithoutBfloat16ComputesInFloat32AndThatIsSaid) {
  const PlannedDevice t4 = device_of(large(), {.gpu = "t4"});
  EXPECT_EQ(t4.keys, std::vector<std::string>{"device.dtype=float32"});
  EXPECT_THAT(t4.heading(), HasSubstr("the T4 in float32, as it has no bfloat16"));
  EXPECT_TRUE(device_of(large({"device.dtype=float32"}), {.gpu = "t4"}).keys.empty());
  const auto refused = device_to_plan_for(large({"device.dtype=bfloat16"}), {.gpu = "t4"}, kNoGpu);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("has no bfloat16"));
}

TEST(PlannedDevice, AGpuRunsNeapsKernelsUnlessItIsTooOldAndThatIsSaid) {
  const auto planned = [](const spec::Job& job, const std::string& gpu) {
    const PlannedDevice device = device_of(job, {.gpu = gpu});
    Result<MemoryPlan> plan = make_plan(job, device.choice.target);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return *std::move(plan);
  };
  const std::vector<std::string> words = {"device.dtype=float32"};
  const spec::Job job = job_of("examples/reviews/model", words);
  const MemoryPlan on_l4 = planned(job, "l4");
  EXPECT_TRUE(on_l4.own_kernels);
  EXPECT_THAT(on_l4.to_text(), Not(HasSubstr("kernels  ")));
  EXPECT_EQ(on_l4.to_json()["kernels"], "neap");
  EXPECT_TRUE(on_l4.to_json()["no_own_kernels"].is_null());
  const MemoryPlan on_t4 = planned(job, "t4");
  EXPECT_FALSE(on_t4.own_kernels);
  const std::string reason = "the GPU has compute capability 7.5, and Neap's kernels need 8.0";
  EXPECT_THAT(on_t4.to_text(), HasSubstr("kernels                libtorch's: " + reason + "\n"));
  EXPECT_EQ(on_t4.to_json()["kernels"], "libtorch");
  EXPECT_EQ(on_t4.to_json()["no_own_kernels"], reason);
  const spec::Job asked =
      job_of("examples/reviews/model", {"device.kernels=libtorch", "device.dtype=float32"});
  EXPECT_FALSE(planned(asked, "l4").own_kernels);
  EXPECT_THAT(planned(asked, "t4").to_text(), Not(HasSubstr("kernels  ")));
  const spec::Job required = job_of("examples/reviews/model", {"device.kernels=neap"});
  EXPECT_TRUE(device_to_plan_for(required, {.gpu = "l4"}, kNoGpu).ok());
  EXPECT_FALSE(device_to_plan_for(required, {.gpu = "t4"}, kNoGpu).ok());
  EXPECT_FALSE(device_to_plan_for(required, {}, kNoGpu).ok()) << "it would run on the CPU";
}

TEST(PlannedDevice, HostMemoryIsThisMachinesOrAsAsked) {
  const PlannedDevice asked = device_of(large(), {.gpu = "rtx4090", .host = 64_GiB});
  EXPECT_EQ(asked.host, for_copies(64_GiB));
  EXPECT_EQ(asked.choice.target.host_memory, asked.host);
  const PlannedDevice here = device_of(large(), {.gpu = "rtx4090"});
  EXPECT_GT(here.host, Bytes());
  EXPECT_LE(here.host, arena::available_host_memory() + 1_GiB);
  EXPECT_TRUE(here.choice.target.host_memory.is_zero());
  MemoryPlan plan;
  plan.peak = 1_GiB;
  plan.host_bytes = asked.host + 1_GiB;
  EXPECT_TRUE(asked.lacks_host(plan));
  EXPECT_THAT(asked.totals(plan), HasSubstr("1 GiB of device memory, 1.78 GiB in nvidia-smi"));
  EXPECT_THAT(asked.totals(plan), HasSubstr("61 GiB of host memory: more than the 60 GiB"));
}

TEST(GpuCatalog, EveryCardHasLessThanItIsSoldWith) {
  for (const std::string& name : gpu_names()) {
    const Card* const card = find_card(name);
    ASSERT_NE(card, nullptr) << name;
    EXPECT_LT(card->free, card->memory) << name;
    EXPECT_GT(card->free.count(), card->memory.count() * 9 / 10) << name;
    const Result<DeviceChoice> choice = gpu_by_name(name, {});
    ASSERT_TRUE(choice.ok());
    const step::KernelRates& rates = choice->target.rates;
    // Products take at least as long as a tenth of the bytes that they could be limited by.
    EXPECT_GT(rates.half_flops, 50 * rates.bytes) << name;
    EXPECT_GT(rates.half_flops, rates.single_flops) << name;
  }
  EXPECT_EQ(free_of_size(24_GiB), find_card("a10g")->free);
  EXPECT_EQ(free_of_size(17_GiB), 17_GiB);
}

}  // namespace
}  // namespace neap::plan

#include "plan/rates/device_choice.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <set>

#include "base/file.h"
#include "base/format.h"

namespace neap::plan {
namespace {

class KernelThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("OMP_NUM_THREADS")) before_ = value;
    ::unsetenv("OMP_NUM_THREADS");
    ASSERT_EQ(::sched_getaffinity(0, sizeof mask_, &mask_), 0);
  }
  void TearDown() override {
    if (!before_.empty()) ::setenv("OMP_NUM_THREADS", before_.c_str(), 1);
    ::sched_setaffinity(0, sizeof mask_, &mask_);
  }
  std::string before_;
  cpu_set_t mask_{};
};

TEST_F(KernelThreads, TheVariableDecides) {
  ::setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_EQ(kernel_threads().value(), 3);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(kernel_threads().value(), 1);
}

TEST_F(KernelThreads, ThousandsAreRefused) {
  for (const char* threads : {"5000", "99999999999999999999"}) {
    ::setenv("OMP_NUM_THREADS", threads, 1);
    const auto device = choose_device({.kind = "cpu"}, {}, Purpose::kPlan);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(device.status().message().starts_with("OMP_NUM_THREADS is "));
  }
  ::setenv("OMP_NUM_THREADS", "256", 1);
  EXPECT_EQ(kernel_threads().value(), 256);
}

TEST_F(KernelThreads, WithoutItThePhysicalCoresOfTheMask) {
  // Counted by package and core, where the program counts lists of siblings.
  std::set<std::string> cores;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask_)) continue;
    const std::string folder = format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    const auto package = read_file(folder + "physical_package_id", 4_KiB);
    const auto core = read_file(folder + "core_id", 4_KiB);
    if (!package.ok() || !core.ok()) GTEST_SKIP() << "no topology of processors here";
    cores.insert(*package + *core);
  }
  const auto quota = read_file("/sys/fs/cgroup/cpu.max", 4_KiB);
  if (quota.ok() && !quota->starts_with("max")) GTEST_SKIP() << "the cgroup has a quota";
  EXPECT_EQ(kernel_threads().value(), static_cast<std::int64_t>(cores.size()));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask_)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(kernel_threads().value(), 1);
}

class OwnKernelsOf : public testing::Test {
 protected:
  Status settle(const std::string& kernels, const Status& loaded = {}) {
    return settle_own_kernels({.kernels = kernels}, loaded, target_);
  }
  Target target_ = [] {
    Target target;
    target.cuda = target.own_kernels = true;
    return target;
  }();
  const Status no_nvrtc_{ErrorCode::kUnsupported, "NVRTC does not load: no such file"};
};

TEST_F(OwnKernelsOf, ACardThatLoadsThemRuns) {
  EXPECT_TRUE(settle("auto").ok());
  EXPECT_TRUE(settle("neap").ok());
  EXPECT_TRUE(target_.own_kernels);
  EXPECT_EQ(target_.no_own_kernels, "");
}

TEST_F(OwnKernelsOf, ACardWithoutACompilerDoesNotRunAndTheReasonIsKept) {
  EXPECT_TRUE(settle("auto", no_nvrtc_).ok());
  EXPECT_FALSE(target_.own_kernels);
  EXPECT_EQ(target_.no_own_kernels, no_nvrtc_.message());
  const Status log(ErrorCode::kInternal, "NVRTC cannot compile gated.cu:\nline 1\nline 2");
  target_.own_kernels = true;
  EXPECT_TRUE(settle("auto", log).ok());
  EXPECT_EQ(target_.no_own_kernels, "NVRTC cannot compile gated.cu:");
}

TEST_F(OwnKernelsOf, AreAnErrorWhereTheJobRequiresThem) {
  const auto refused = [&](const Status& status, const std::string& reason) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(status.message(),
              "device.kernels is \"neap\", but Neap's kernels do not run: " + reason +
                  ". With \"auto\" the job takes libtorch's where they do not");
  };
  refused(settle("neap", no_nvrtc_), no_nvrtc_.message());
  target_.no_own_kernels = no_own_kernels_on(75);
  refused(settle("neap"), "the GPU has compute capability 7.5, and Neap's kernels need 8.0");
  EXPECT_TRUE(settle("libtorch").ok());
  target_ = {};
  refused(settle("neap"), "the job runs on the CPU");
  EXPECT_TRUE(settle("auto").ok());
  EXPECT_EQ(target_.no_own_kernels, "");
}

TEST_F(OwnKernelsOf, CardsRunFromComputeCapability8) {
  EXPECT_EQ(no_own_kernels_on(80), "");
  EXPECT_EQ(no_own_kernels_on(120), "");
  EXPECT_NE(no_own_kernels_on(75), "");
  const auto warp_groups = [&](int architecture) {
    use_architecture(target_, architecture);
    return target_.warp_groups;
  };
  EXPECT_FALSE(warp_groups(89));
  EXPECT_TRUE(target_.own_kernels);
  EXPECT_TRUE(warp_groups(90));
  EXPECT_FALSE(warp_groups(100));
  EXPECT_TRUE(target_.own_kernels);
}

}  // namespace
}  // namespace neap::plan

#include "plan/device_choice.h"

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

}  // namespace
}  // namespace neap::plan

#include "base/process.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

namespace neap {
namespace {

int answer_of_child(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Process, AForkedChildKnowsItself) {
  EXPECT_EQ(current_process(), ::getpid());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool knows = current_process() == ::getpid();
    const pid_t grandchild = ::fork();
    if (grandchild == 0) std::_Exit(current_process() == ::getpid() ? 0 : 1);
    std::_Exit(knows && answer_of_child(grandchild) == 0 ? 0 : 1);
  }
  EXPECT_EQ(answer_of_child(child), 0);
  EXPECT_EQ(current_process(), ::getpid());
}

TEST(Process, TheMachineHasTheMemoryThatTheKernelTells) {
  struct sysinfo told {};
  ASSERT_EQ(::sysinfo(&told), 0);
  EXPECT_EQ(machine_memory(), Bytes(std::uint64_t{told.totalram} * told.mem_unit));
  EXPECT_LT(resident_memory(), machine_memory());
}

}  // namespace
}  // namespace neap

#include "parallel/shared_counters.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace neap::parallel {
namespace {

TEST(SharedCounters, ProcessesHaveThemInCommon) {
  Result<SharedCounters> made = SharedCounters::make(3);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->at(2).value, 0U);
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<SharedCounters> opened = SharedCounters::open(made->name(), 3);
    if (!opened.ok()) ::_exit(1);
    opened->at(2).value = 7;
    ::_exit(0);
  }
  int code = 0;
  ASSERT_EQ(::waitpid(child, &code, 0), child);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(made->at(2).value, 7U);
}

TEST(SharedCounters, TheNameIsGoneWhenAllHaveOpenedIt) {
  Result<SharedCounters> made = SharedCounters::make(1);
  ASSERT_TRUE(made.ok());
  const Result<SharedCounters> opened = SharedCounters::open(made->name(), 1);
  ASSERT_TRUE(opened.ok());
  made->remove_name();
  EXPECT_EQ(SharedCounters::open(made->name(), 1).status().code(), ErrorCode::kIo);
  opened->at(0).value = 5;
  EXPECT_EQ(made->at(0).value, 5U);
  std::string name;
  {
    Result<SharedCounters> other = SharedCounters::make(1);
    ASSERT_TRUE(other.ok());
    name = other->name();
  }
  EXPECT_FALSE(SharedCounters::open(name, 1).ok()) << "a failed start leaves no file";
}

TEST(SharedCounters, FilesOfAnotherSizeAreRefused) {
  const std::string name = "/neap-test-" + std::to_string(::getpid());
  const int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, 100), 0);
  EXPECT_EQ(SharedCounters::open(name, 1).status().code(), ErrorCode::kInvalidArgument);
  ::close(file);
  ::shm_unlink(name.c_str());
}

}  // namespace
}  // namespace neap::parallel

// A process that is killed while it writes a checkpoint in the background, at every system call that changes the folder:
// "auto" finds a whole checkpoint each time, and the next writer goes on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "parallel/communicator.h"
#include "train/background_save.h"
#include "train/checkpoint.h"
#include "train/checkpoint_files.h"
#include "unit/train/copies_memory.h"
#include "weights/tensor_io.h"

namespace {

void check_whole(const std::filesystem::path& folder) {
  neap::train::check_files(folder);
}

std::atomic<int> calls_to_go = 0;  // 0: no kill
bool exchanges = true;             // false: a file system that cannot exchange two names

void count_call() {
  if (calls_to_go > 0 && --calls_to_go == 0) ::kill(::getpid(), SIGKILL);
}

}  // namespace

// In front of the C library's: the program's and libstdc++'s calls come here.
#pragma GCC visibility push(default)
extern "C" int rename(const char* from, const char* to) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  count_call();
  if (!exchanges) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
extern "C" int symlink(const char* to, const char* name) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_symlink, to, name));
}
extern "C" int unlinkat(int folder, const char* name, int flags) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}
extern "C" int fsync(int file) {
  count_call();
  return static_cast<int>(::syscall(SYS_fsync, file));
}
extern "C" ssize_t pwrite(int file, const void* from, std::size_t count, off_t at) {
  count_call();
  return ::syscall(SYS_pwrite64, file, from, count, at);
}
extern "C" ssize_t pwrite64(int file, const void* from, std::size_t count, off_t at) {
  return pwrite(file, from, count, at);
}
#pragma GCC visibility pop

namespace neap::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kValues = "values.safetensors";

class CommitKilled : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            ("neap-commit-" + std::to_string(::getpid()) + "-" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { fs::remove_all(root_); }

  static at::Tensor values_of(const std::string& text) {
    return at::full({5}, 100.0 * text.front() + static_cast<double>(text.size()), at::kFloat);
  }
  void write(std::int64_t step, const Retention& keep, const std::string& text, int call = 0) {
    const auto ranks = parallel::make_single();
    testing::CopiesMemory memory;
    BackgroundSave background(*ranks);
    auto writer = std::make_unique<CheckpointWriter>(root_, step);
    const fs::path actor = writer->folder() / "actor";
    fs::create_directory(actor);
    std::ofstream(actor / "weights") << text;
    SavedFiles saved(*ranks, memory.copies.get());
    const at::Tensor values = values_of(text);
    calls_to_go = call;
    saved.add(CollectiveFiles(*ranks, weights::one_file(actor / kValues, {{"x", "F32", {5}}}), {},
                              weights::Sync::kByCaller),
              [&](const PartVisit& visit) {
                visit({{0, values, {{0, 0, 5}}}});
              });
    values.zero_();
    background.start(std::move(saved), std::move(writer), keep);
    background.wait();
    calls_to_go = 0;
  }
  /// Runs write() in a process that is killed at the `call`-th call. False: it ended before.
  bool write_and_be_killed(std::int64_t step, const Retention& keep, const std::string& text,
                           int call) {
    const pid_t child = ::fork();
    if (child == 0) {
      write(step, keep, text, call);
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
  }
  [[nodiscard]] std::string newest() const {
    const auto found = find_checkpoint(root_, "auto", {}, check_whole);
    if (!found) return "none";
    std::string text = value_or_throw(read_file(found->folder / "actor" / "weights"));
    const at::Tensor values = at::empty({5});
    weights::load_tensors(weights::SafetensorsFile::open(found->folder / "actor" / kValues),
                          {{"x", values}});
    EXPECT_TRUE(values.equal(values_of(text))) << text;
    return text;
  }
  /// Kills a commit of `step` everywhere; before() makes the folder. Each time the newest checkpoint is the one before or the
  /// new one.
  template <class Before>
  void kill_everywhere(std::int64_t step, const Retention& keep, const Before& before) {
    int call = 1;
    for (;; ++call) {
      SCOPED_TRACE(format("call {}", call));
      ASSERT_LT(call, 200);
      fs::remove_all(root_);
      before();
      const std::string old = newest();
      const bool killed = write_and_be_killed(step, keep, "new", call);
      const std::string found = newest();
      ASSERT_TRUE(found == "new" || (killed && found == old)) << found;
      write(step + 1, keep, "next");
      ASSERT_EQ(newest(), "next");
      for (const auto& entry : fs::directory_iterator(root_)) {
        const std::string name = entry.path().filename();
        EXPECT_FALSE(name.starts_with("global_step_") && name.find('.') != std::string::npos)
            << name;
        EXPECT_FALSE(name.starts_with("latest.") || name.starts_with("best.")) << name;
      }
      if (!killed) break;
    }
    EXPECT_GT(call, 10) << "no calls were seen";
  }

  fs::path root_;
};

TEST_F(CommitKilled, OfTheNextStep) {
  kill_everywhere(2, {1, {}, {}}, [&] { write(1, {1, {}, {}}, "old"); });
}

TEST_F(CommitKilled, OfTheFirstStepAndTheBest) {
  kill_everywhere(1, {2, 1, {}}, [&] { fs::create_directories(root_); });
}

// A run that was told to resume from an older checkpoint writes the newest one's step once more.
TEST_F(CommitKilled, OfAStepThatIsThereAlready) {
  kill_everywhere(4, {0, {}, {}}, [&] {
    write(2, {0, {}, {}}, "older");
    write(4, {0, {}, {}}, "old");
  });
}

// ... and steps before it, of which the new ones count.
TEST_F(CommitKilled, OfAStepBeforeOthers) {
  kill_everywhere(4, {2, {}, {}}, [&] {
    for (const std::int64_t step : {2, 8, 10}) write(step, {0, {}, {}}, "old");
  });
  EXPECT_TRUE(fs::exists(root_ / "global_step_4"));
  EXPECT_TRUE(fs::exists(root_ / "global_step_5"));
  EXPECT_FALSE(fs::exists(root_ / "global_step_8"));
  EXPECT_FALSE(fs::exists(root_ / "global_step_10"));
}

// Names cannot be exchanged on NFS. Until now the old checkpoint went before the new one had its name.
TEST_F(CommitKilled, OfTheSameStepWhereNamesCannotBeExchanged) {
  exchanges = false;
  kill_everywhere(2, {1, {}, {}}, [&] { write(2, {1, {}, {}}, "old"); });
  exchanges = true;
}

}  // namespace
}  // namespace neap::train

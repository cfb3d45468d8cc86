#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/file_identity.h"
#include "base/file_version.h"
#include "base/open_file.h"

namespace neap {
namespace {

TEST(File, WritesWholeOrNotAtAll) {
  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      ("neap_file_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto path = folder / "a.txt";
  ASSERT_TRUE(write_file_atomic(path, "one").ok());
  ASSERT_TRUE(write_file_atomic(path, "two").ok());
  EXPECT_EQ(read_file(path).value(), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1)
      << "no temporary left behind";
  std::filesystem::remove_all(folder);
}

TEST(File, IdentityIsOfTheFileAndNotOfItsName) {
  std::string folder = ::testing::TempDir() + "neap-identity-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto identity = [&](const std::string& name) {
    const Descriptor file(::open((folder + "/" + name).c_str(), O_RDWR | O_CREAT, 0644));
    const Result<std::string> result = file_identity(file.get());
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result.value().find('\n'), std::string::npos);
    return result.value();
  };
  const std::string one = identity("a");
  EXPECT_EQ(one, identity("a"));
  EXPECT_NE(one, identity("b"));
  std::filesystem::rename(folder + "/a", folder + "/c");
  EXPECT_EQ(one, identity("c"));
  EXPECT_FALSE(file_identity(-1).ok());
  std::filesystem::remove_all(folder);
}

TEST(File, AVersionIsOfContentsAndOfWhatAPathNames) {
  std::string folder = ::testing::TempDir() + "neap-version-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path path = folder + "/a";
  ASSERT_TRUE(write_file_atomic(path, "one").ok());
  const Descriptor file(::open(path.c_str(), O_RDWR));
  const FileVersion before = version_of(path).value();
  EXPECT_EQ(before, version_of(file.get(), path).value());
  EXPECT_TRUE(before.is_fresh());
  EXPECT_EQ(version_of(folder + "/none").status().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(version_of(-1, path).ok());
  // Another file takes the path.
  ASSERT_TRUE(write_file_atomic(path, "two").ok());
  EXPECT_NE(version_of(path).value(), before);
  EXPECT_NE(version_of(path).value().text(), before.text());
  EXPECT_TRUE(version_of(file.get(), path).value().has_contents_of(before));
  // Another size, and another time at the same size.
  ASSERT_EQ(::pwrite(file.get(), "more", 4, 0), 4);
  EXPECT_FALSE(version_of(file.get(), path).value().has_contents_of(before));
  const FileVersion grown = version_of(file.get(), path).value();
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::futimens(file.get(), times), 0);
  const FileVersion old = version_of(file.get(), path).value();
  EXPECT_FALSE(old.has_contents_of(grown));
  EXPECT_TRUE(old.is_fresh()) << "the time of a write can be set, that of the change cannot";
  std::filesystem::remove_all(folder);
}

// Temporary names were NAME.tmp-PID: threads wrote into one file, and a link of that name was followed.
TEST(File, ThreadsThatWriteOneFileDoNotShareItsTemporaryFile) {
  std::string folder = ::testing::TempDir() + "neap-threads-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path path = folder + "/a.txt";
  const std::filesystem::path other = folder + "/other.txt";
  std::ofstream(other) << "kept";
  std::filesystem::create_symlink(other, path.string() + ".tmp-" + std::to_string(::getpid()));
  std::vector<std::thread> threads;
  std::vector<std::string> texts;
  threads.reserve(4);
  for (char c = 'a'; c < 'e'; ++c) texts.push_back(std::string(100'000, c));
  for (const std::string& text : texts) {
    threads.emplace_back([&path, &text] {
      for (int i = 0; i < 20; ++i) {
        const Status written = write_file_atomic(path, text);
        EXPECT_TRUE(written.ok()) << written.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(std::find(texts.begin(), texts.end(), read_file(path).value()), texts.end());
  EXPECT_EQ(read_file(other).value(), "kept");

  // What a killed process left goes, nothing else.
  std::ofstream(folder + "/plan.json.tmp-12-0123456789abcdef") << "{";
  for (const char* name : {"a.tmp-12", "b.tmp-12-0123", "c.tmp-x-0123456789abcdef"})
    std::ofstream(folder + "/" + name) << "mine";
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  const auto before = files();
  remove_temporary_files(folder);
  EXPECT_EQ(files(), before - 1);
  EXPECT_FALSE(std::filesystem::exists(folder + "/plan.json.tmp-12-0123456789abcdef"));
  std::filesystem::remove_all(folder);
}

// A pipe gives what was written so far: the file comes in pieces, and its size is not known.
TEST(File, IsReadInPieces) {
  std::string folder = ::testing::TempDir() + "neap-pipe-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string text;
  while (text.size() < 200'000) text += std::to_string(text.size()) + ",";
  const auto read_from_pipe = [&](Bytes limit) {
    std::thread writer([&] {
      std::ofstream pipe(path);
      for (std::size_t at = 0; at < text.size() && pipe; at += 30'011)
        pipe.write(text.data() + at,
                   static_cast<std::streamsize>(std::min<std::size_t>(30'011, text.size() - at)))
            .flush();
    });
    auto read = read_file(path, limit);
    writer.join();
    return read;
  };
  ::signal(SIGPIPE, SIG_IGN);  // the reader that stops at its limit
  const auto whole = read_from_pipe(Bytes(text.size()));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_TRUE(*whole == text) << whole->size() << " of " << text.size() << " bytes";
  const auto over = read_from_pipe(Bytes(text.size() - 1));
  EXPECT_EQ(over.status().code(), ErrorCode::kInvalidArgument);
  ::signal(SIGPIPE, SIG_DFL);
  std::filesystem::remove_all(folder);
}

TEST(File, OnlyRegularFilesWithinTheirLimitAreOpenedAsSuch) {
  const std::filesystem::path folder =
      ::testing::TempDir() + "neap_regular_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto why = [](const std::filesystem::path& path) {
    return open_regular_file(path, read_limits::kJudge).status().message();
  };
  EXPECT_EQ(why(folder), folder.string() + " is a folder, not a file");
  EXPECT_EQ(why("/dev/zero"), "/dev/zero is a device, not a file");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(why(folder / "pipe"), (folder / "pipe").string() + " is a pipe, not a file");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPipePatience / 2);
  EXPECT_EQ(open_regular_file(folder / "none").status().code(), ErrorCode::kNotFound);
  std::ofstream(folder / "sparse.py") << "x = 1";
  EXPECT_TRUE(open_regular_file(folder / "sparse.py", read_limits::kJudge).ok());
  std::filesystem::resize_file(folder / "sparse.py", std::uintmax_t{1} << 40);
  EXPECT_EQ(why(folder / "sparse.py"),
            (folder / "sparse.py").string() +
                " is over the limit of 16 MiB for the source of a reward function; check the "
                "function's path");
  std::filesystem::remove_all(folder);
}

TEST(File, AFileOfExactlyTheLimitIsRead) {
  const std::string path = ::testing::TempDir() + "neap_limit_" + std::to_string(::getpid());
  ASSERT_TRUE(write_file_atomic(path, "1234").ok());
  EXPECT_EQ(read_file(path, Bytes(4)).value(), "1234");
  const auto over = read_file(path, Bytes(3));
  EXPECT_EQ(over.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(over.status().message().find("is over the limit of 3 B for this file"),
            std::string::npos)
      << over.status().message();
  std::filesystem::remove(path);
}

constexpr int kCannotMount = 77;

// Runs `work` in a child process, which may change what it may write. Exit code 0: it held.
template <class Work>
int in_a_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(work());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool is_full(const Status& status, const std::filesystem::path& path, int error_number) {
  const std::string wanted = "Cannot write " + path.string() + ": " + system_reason(error_number);
  if (status.code() == ErrorCode::kIo && status.message() == wanted) return true;
  std::fprintf(stderr, "got \"%s\"\nnot \"%s\"\n", status.message().c_str(), wanted.c_str());
  return false;
}

// The file that was there is still there, alone.
bool holds_only(const std::filesystem::path& path, std::string_view contents) {
  const auto there = read_file(path);
  return there.ok() && *there == contents &&
         std::distance(std::filesystem::directory_iterator(path.parent_path()), {}) == 1;
}

class FullFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "neap-full-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "a.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_, path_;
};

TEST_F(FullFile, AFullFileSystemLeavesTheOldFileAlone) {
  const int code = in_a_child([&] {
    // A file system of its own, as root or in a user namespace.
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
      return kCannotMount;
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kCannotMount;
    if (::mount("none", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) return kCannotMount;
    if (!write_file_atomic(path_, "old").ok()) return 1;
    const Status status = write_file_atomic(path_, std::string(1 << 20, 'x'));
    if (!is_full(status, path_, ENOSPC)) return 2;
    if (!holds_only(path_, "old")) return 3;
    return write_file_atomic(path_, "new").ok() && holds_only(path_, "new") ? 0 : 4;
  });
  if (code == kCannotMount) GTEST_SKIP() << "this user may not mount a file system";
  EXPECT_EQ(code, 0);
}

// The same from write(2), where nobody may mount: the kernel takes a part of the text and refuses the
// rest.
TEST_F(FullFile, ALimitOfFileSizeLeavesTheOldFileAlone) {
  EXPECT_EQ(in_a_child([&] {
              if (!write_file_atomic(path_, "old").ok()) return 1;
              const rlimit limit{65536, 65536};
              ::signal(SIGXFSZ, SIG_IGN);
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
              const Status status = write_file_atomic(path_, std::string(1 << 20, 'x'));
              if (!is_full(status, path_, EFBIG)) return 3;
              return holds_only(path_, "old") ? 0 : 4;
            }),
            0);
}

TEST(File, MissingFoldersAreNotFound) {
  const Status status = write_file_atomic("/nonexistent-folder/x", "data");
  EXPECT_EQ(status.code(), ErrorCode::kNotFound);
  EXPECT_NE(status.message().find("/nonexistent-folder/x"), std::string::npos);
  EXPECT_EQ(sync_path("/nonexistent-folder/x").code(), ErrorCode::kNotFound);
}

TEST(File, TakesTheFilesThatHaveNoSize) {
  const auto text = read_file("/proc/self/status");  // says 0 bytes
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_NE(text->find("Pid:\t" + std::to_string(::getpid()) + "\n"), std::string::npos);
}

TEST(File, LimitsHoldWhetherTheSizeIsKnownOrNot) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "neap_file_limit";
  std::string contents(100'000, '.');
  for (std::size_t i = 0; i < contents.size(); i += 97)
    contents[i] = static_cast<char>('a' + i % 26);
  ASSERT_TRUE(write_file_atomic(path, contents).ok());
  EXPECT_EQ(read_file(path, Bytes(100'000)).value(), contents);
  const auto known = read_file(path, Bytes(99'999));
  EXPECT_EQ(known.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(known.status().message().find("over the limit of"), std::string::npos);
  EXPECT_EQ(read_file("/proc/self/status", 16_B).status().code(), ErrorCode::kInvalidArgument);
  std::filesystem::remove(path);
}

TEST(File, APipeWaitsForItsWriterAndNotWithoutEnd) {
  const auto path =
      std::filesystem::path(::testing::TempDir()) / ("neap_pipe_" + std::to_string(::getpid()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto nobody = open_file(path, std::chrono::milliseconds(20));
  EXPECT_EQ(nobody.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(nobody.status().message().find("pipe into which no program has written for 20 ms"),
            std::string::npos);
  std::thread writer([&] {
    std::ofstream out(path);
    for (const char* part : {"ab", "cd"}) {
      out << part << std::flush;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  });
  const auto text = read_file(path);
  writer.join();
  EXPECT_EQ(text.ok() ? *text : text.status().message(), "abcd");
  // A shell's <(...), which may write late.
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const auto late = open_file("/dev/fd/" + std::to_string(ends[0]), std::chrono::milliseconds(0));
  EXPECT_TRUE(late.ok()) << late.status().message();
  for (const int end : ends) ::close(end);
  std::filesystem::remove(path);
}

TEST(File, ReadFailuresNameThePath) {
  EXPECT_NE(read_file("/does/not/exist").status().message().find("/does/not/exist"),
            std::string::npos);
  EXPECT_NE(read_file("/tmp").status().message().find("directory"), std::string::npos);
}

}  // namespace
}  // namespace neap

// What people see on stderr: log lines, and progress in a file and on a terminal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"

namespace neap {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Stderr goes to `fd` while this lives.
class StderrTo {
 public:
  explicit StderrTo(int fd) : saved_(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  ~StderrTo() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }
  StderrTo(const StderrTo&) = delete;
  StderrTo& operator=(const StderrTo&) = delete;

 private:
  int saved_;
};

std::string read_what_is_there(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  pollfd waiting{fd, POLLIN, 0};
  while (::poll(&waiting, 1, 50) == 1 && (waiting.revents & POLLIN) != 0) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return text;
}

// What `work` writes to stderr when that is a file.
template <class Work>
std::string in_a_log(const Work& work) {
  std::string path = ::testing::TempDir() + "neap-stderr-XXXXXX";
  const int fd = ::mkstemp(path.data());
  {
    const StderrTo redirected(fd);
    work();
  }
  ::lseek(fd, 0, SEEK_SET);
  std::string text = read_what_is_there(fd);
  ::close(fd);
  ::unlink(path.c_str());
  return text;
}

// What `work` writes to stderr when that is a terminal of `columns`.
template <class Work>
std::string on_a_terminal(unsigned short columns, const Work& work) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(master, 0);
  EXPECT_EQ(::grantpt(master) | ::unlockpt(master), 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  const winsize size{24, columns, 0, 0};
  ::ioctl(terminal, TIOCSWINSZ, &size);
  {
    const StderrTo redirected(terminal);
    work();
  }
  std::string text = read_what_is_there(master);
  ::close(terminal);
  ::close(master);
  return text;
}

class Terminal : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("NEAP_PROGRESS");
    level_ = log::level();
    log::set_level(log::Level::kInfo);
  }
  void TearDown() override { log::set_level(level_); }

 private:
  log::Level level_ = log::Level::kInfo;
};

TEST_F(Terminal, LogLinesSayTheirLevelAndRespectIt) {
  const auto all = [] {
    log::debug("d");
    log::info("i");
    log::warn("w");
    log::error("e");
  };
  EXPECT_EQ(in_a_log(all), "neap: i\nneap: warning: w\nneap: error: e\n");
  log::set_level(log::Level::kDebug);
  EXPECT_EQ(in_a_log(all), "neap: debug: d\nneap: i\nneap: warning: w\nneap: error: e\n");
  log::set_level(log::Level::kOff);
  EXPECT_EQ(in_a_log(all), "");
}

TEST_F(Terminal, ALogThatCannotBeWrittenIsGivenUp) {
  const int fd = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const StderrTo full(fd);
  log::error("nobody reads this");
  ::close(STDERR_FILENO);
  log::error("nor this");
  ::close(fd);
}

TEST_F(Terminal, LogLinesOfManyThreadsStayWhole) {
  const std::string text = in_a_log([] {
    std::vector<std::thread> threads;
    for (char c = 'a'; c < 'e'; ++c) {
      threads.emplace_back([c] {
        for (int i = 0; i < 200; ++i) log::info(std::string(60, c));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(std::regex_replace(text, std::regex("neap: (a{60}|b{60}|c{60}|d{60})\n"), ""), "");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 800);
}

TEST_F(Terminal, ProgressInALogIsALineAtTheEndAndNotOneAnUpdate) {
  const std::string text = in_a_log([] {
    Progress progress("load", 1000, "rows");
    for (std::uint64_t i = 1; i <= 1000; ++i) progress.update(i);
  });
  EXPECT_TRUE(
      std::regex_match(text, std::regex("neap: load  1000/1000 rows  [0-9.]+/s  [0-9:]+ in all\n")))
      << text;
}

TEST_F(Terminal, ProgressIsQuietWhenAsked) {
  const auto work = [] {
    Progress progress("load", 10, "rows");
    progress.update(10);
  };
  ::setenv("NEAP_PROGRESS", "off", 1);
  EXPECT_EQ(in_a_log(work), "");
  ::unsetenv("NEAP_PROGRESS");
  log::set_level(log::Level::kWarn);
  EXPECT_EQ(in_a_log(work), "");
}

TEST_F(Terminal, ProgressThatNeverBeganSaysNothing) {
  EXPECT_EQ(in_a_log([] { const Progress progress("load", 10, "rows"); }), "");
}

TEST_F(Terminal, ProgressOnATerminalDrawsABarWithinItsWidth) {
  const std::string text = on_a_terminal(60, [] {
    Progress progress("load", 4, "rows");
    progress.update(2, std::string(200, 'x'));
  });
  EXPECT_THAT(text, HasSubstr("████████████░░░░░░░░░░░░  2/4 rows"));
  EXPECT_THAT(text, Not(HasSubstr(std::string(40, 'x')))) << "wider than the terminal";
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(Terminal, ProgressCountsHours) {
  const std::string text = on_a_terminal(120, [] {
    Progress progress("load", 1'000'000'000, "rows");
    progress.update(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    progress.update(10);
  });
  EXPECT_TRUE(std::regex_search(text, std::regex("/s  [0-9]{2,7}:[0-5][0-9]:[0-5][0-9] left")))
      << text;
}

TEST_F(Terminal, ProgressShowsThePartUnderWay) {
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(110)); };
  const std::string text = on_a_terminal(80, [&] {
    Progress progress("grpo", 20, "steps");
    progress.start(3);
    pause();
    progress.begin_part("generate", 0, 128, "responses");
    pause();
    progress.update_part(34);
    pause();
    progress.begin_part("train_actor", 7, 16, "micro-batches");
    progress.advance_part();
    pause();
    progress.advance_part();
    pause();
    progress.set_stage("validation");
    progress.begin_part("rewards");
    pause();
    progress.set_stage("");
    progress.update(4);
  });
  EXPECT_THAT(text, HasSubstr("3/20 steps  generate 0/128 responses"))
      << "no rate before a step is done";
  EXPECT_THAT(text, HasSubstr("generate 34/128 responses"));
  EXPECT_THAT(text, HasSubstr("train_actor 9/16 micro-batches"));
  EXPECT_THAT(text, HasSubstr("validation: rewards\x1b"));
  EXPECT_TRUE(std::regex_search(text, std::regex("4/20 steps  [0-9.]+/s  0:[0-5][0-9] left\x1b")))
      << "the part ends with its step: " << text;
}

TEST_F(Terminal, ProgressCountsFromItsStart) {
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> took{};
  const std::string text = in_a_log([&] {
    Progress progress("grpo", 20, "steps");
    progress.begin_part("validate");
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    const auto begin = Clock::now();
    progress.start(10);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    progress.update(11);
    took = Clock::now() - begin;
  });
  std::smatch rate;
  ASSERT_TRUE(std::regex_search(text, rate, std::regex("11/20 steps  ([0-9.]+)/s"))) << text;
  EXPECT_GT(std::stod(rate[1]), 0.95 / took.count()) << "what was before does not count";
  EXPECT_LT(std::stod(rate[1]), 34);
}

TEST_F(Terminal, ProgressKeepsItsRateWhileAUnitIsUnderWay) {
  const std::string text = on_a_terminal(80, [] {
    Progress progress("grpo", 20, "steps");
    progress.start(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    progress.update(1);
    progress.begin_part("generate");
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    progress.update_part(1);
  });
  const std::regex shown("1/20 steps  ([0-9.]+)/s");
  std::set<std::string> rates;
  for (std::sregex_iterator it(text.begin(), text.end(), shown), end; it != end; ++it)
    rates.insert((*it)[1]);
  EXPECT_EQ(rates.size(), 1U) << text;
}

TEST_F(Terminal, LogLinesPassAboveTheBar) {
  const std::string text = on_a_terminal(100, [] {
    Progress progress("load", 4, "rows");
    progress.update(1);
    log::info("hello");
    progress.update(4);
  });
  const auto line = text.find("\x1b[Kneap: hello");
  ASSERT_NE(line, std::string::npos) << text;
  EXPECT_NE(text.find("1/4 rows", line), std::string::npos) << "the bar comes back under the line";
}

TEST_F(Terminal, OtherThreadsMayLogWhileTheBarMoves) {
  const std::string text = on_a_terminal(100, [] {
    Progress progress("load", 2000, "rows");
    std::thread other([] {
      for (int i = 0; i < 50; ++i) log::info("beside");
    });
    for (std::uint64_t i = 1; i <= 2000; ++i) progress.update(i, "note " + std::to_string(i));
    other.join();
  });
  std::size_t lines = 0;
  for (auto at = text.find("beside"); at != std::string::npos; at = text.find("beside", at + 1))
    ++lines;
  EXPECT_EQ(lines, 50U);
  EXPECT_THAT(text, HasSubstr("2000/2000 rows"));
}

TEST(ParseJson, NamesThePlaceAndTheByte) {
  EXPECT_EQ(parse_json(R"({"a": [1, 2]})", "x.json").value()["a"][1], 2);
  const auto broken = parse_json(R"({"a": )", "data.jsonl:7");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.status().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(broken.status().message(), HasSubstr("data.jsonl:7: not valid JSON"));
  EXPECT_THAT(broken.status().message(), HasSubstr("column 7"));
  EXPECT_FALSE(parse_json("", "empty").ok());
  const std::string open(600, '['), close(600, ']');
  EXPECT_TRUE(parse_json("[\"\\\"" + open + "\\\\\"]", "text").ok()) << "brackets in a text";
  const auto nested = parse_json("[\"\\\"\", " + open + close + "]", "deep");
  ASSERT_FALSE(nested.ok());
  EXPECT_NE(nested.status().message().find("deep nests over the limit of 500 levels for JSON"),
            std::string::npos);
  EXPECT_TRUE(parse_json(std::string(500, '[') + std::string(500, ']'), "deep").ok());
  EXPECT_TRUE(parse_json('"' + std::string(10000, '[') + "\\\"" + '"', "text").ok());
  const auto deep = parse_json(std::string(5000000, '['), "deep");
  EXPECT_NE(deep.status().message().find("over the limit of 500 levels"), std::string::npos);
  EXPECT_FALSE(parse_json("{} x", "rest").ok());
  EXPECT_FALSE(parse_json("\"\xff\"", "bytes").ok()) << "not UTF-8";
}

}  // namespace
}  // namespace neap

#include "report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "metrics_folder.h"
#include "report/run_folder.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path only_event_file(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / kTensorboardFolder))
    files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1u);
  return files.at(0);
}

// Records in an event file, counted by walking the framing and checking both sums.
std::size_t count_records(std::string_view file) {
  std::size_t count = 0;
  const auto word = [&](std::size_t at, int bytes) {
    std::uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(file[at + static_cast<std::size_t>(i)]);
    return value;
  };
  while (!file.empty()) {
    const auto length = static_cast<std::size_t>(word(0, 8));
    EXPECT_EQ(word(8, 4), masked_crc32c(file.substr(0, 8)));
    EXPECT_EQ(word(12 + length, 4), masked_crc32c(file.substr(12, length)));
    file.remove_prefix(16 + length);
    ++count;
  }
  return count;
}

TEST(Crc32c, KnownVectors) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(EventFile, BytesAsTensorBoardWritesThem) {
  // Written by TensorBoard's own Event message and RecordWriter (tests/golden/report/make_scalars.py).
  const std::string golden =
      contents_of(std::string(NEAP_SOURCE_DIR) + "/tests/golden/report/scalars.tfevents");
  const std::string ours =
      version_record(1700000000.25) +
      scalars_record(1700000001.5, 3, {{"actor/ppo_kl", 0.0012345}, {"timing_s/gen", 1.5}}) +
      scalars_record(1700000002.75, 300000, {{"critic/vf_loss", -7.25e10}});
  EXPECT_EQ(ours, golden);
}

TEST(MetricsLogger, WritesOneLineAStep) {
  const TemporaryFolder folder;
  auto logger = open_quietly(folder.path());
  ASSERT_TRUE(logger.log(1, {{"actor/ppo_kl", 0.25}, {"timing_s/gen", 2}}).ok());
  ASSERT_TRUE(logger.log(2, {{"actor/ppo_kl", NAN}}).ok());
  EXPECT_EQ(contents_of(folder.path() / kMetricsFile),
            "{\"step\":1,\"actor/ppo_kl\":0.25,\"timing_s/gen\":2.0}\n"
            "{\"step\":2,\"actor/ppo_kl\":null}\n");
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), 3u);
}

TEST(MetricsLogger, ResumeRewindsAndAppends) {
  const TemporaryFolder folder;
  {
    auto logger = open_quietly(folder.path());
    for (std::uint64_t step = 1; step <= 5; ++step)
      ASSERT_TRUE(logger.log(step, {{"loss", static_cast<double>(step)}}).ok());
  }
  // Killed in the middle of a record, and of a line.
  append_text(folder.path() / kMetricsFile, "{\"step\":6,\"lo");
  append_text(only_event_file(folder.path()), std::string("\x40\0\0\0\0", 5));
  {
    auto logger = open_quietly(folder.path(), 3);
    for (std::uint64_t step = 4; step <= 6; ++step)
      ASSERT_TRUE(logger.log(step, {{"loss", -static_cast<double>(step)}}).ok());
  }
  EXPECT_THAT(steps_of(folder.path() / kMetricsFile), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), 7u);
  EXPECT_THAT(contents_of(folder.path() / kMetricsFile), HasSubstr("\"loss\":-4.0"));
}

// Rows of step 0 stayed, one more for each run that was killed before its first checkpoint.
TEST(MetricsLogger, AStartOverAKilledRunKeepsNoRows) {
  const TemporaryFolder folder;
  for (int i = 0; i < 3; ++i) {
    auto logger = open_quietly(folder.path(), -1);
    for (const std::uint64_t step : {0U, 1U})
      ASSERT_TRUE(logger.log(step, {{"loss", static_cast<double>(step)}}).ok());
  }
  EXPECT_THAT(steps_of(folder.path() / kMetricsFile), ElementsAre(0, 1));
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), 3u);
}

TEST(MetricsLogger, ANewRunRefusesAnOldFolder) {
  const TemporaryFolder folder;
  ASSERT_TRUE(open_quietly(folder.path()).log(1, {{"loss", 1.0}}).ok());
  for (const bool jsonl : {true, false}) {
    MetricsOptions options;
    options.folder = folder.path();
    options.jsonl = jsonl;
    options.tensorboard = !jsonl;
    auto logger = MetricsLogger::open(options);
    ASSERT_FALSE(logger.ok());
    EXPECT_EQ(logger.status().code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(logger.status().message(), HasSubstr(folder.path().string()));
  }
}

TEST(MetricsLogger, KilledProcessLosesNoLoggedStep) {
  const TemporaryFolder folder;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto logger = open_quietly(folder.path());
    for (std::uint64_t step = 1;; ++step) {
      if (!logger.log(step, {{"loss", 1.0 / static_cast<double>(step)}}).ok()) ::_exit(1);
      if (::write(pipe_ends[1], &step, sizeof step) != sizeof step) ::_exit(1);
    }
  }
  ::close(pipe_ends[1]);
  std::uint64_t told = 0, step = 0;
  while (told < 200 && ::read(pipe_ends[0], &step, sizeof step) == sizeof step) told = step;
  ::kill(child, SIGKILL);
  int ended = 0;
  ::waitpid(child, &ended, 0);
  while (::read(pipe_ends[0], &step, sizeof step) == sizeof step) told = step;
  ::close(pipe_ends[0]);
  ASSERT_TRUE(WIFSIGNALED(ended));

  const auto steps = steps_of(folder.path() / kMetricsFile);
  ASSERT_GE(steps.size(), told);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], i + 1);
  { auto logger = open_quietly(folder.path(), told); }
  EXPECT_EQ(steps_of(folder.path() / kMetricsFile).size(), told);
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), told + 1);
}

TEST(MetricsLogger, SinksByName) {
  MetricsOptions options;
  ASSERT_TRUE(MetricsLogger::choose_sinks({"jsonl"}, options).ok());
  EXPECT_FALSE(options.console);
  EXPECT_TRUE(options.jsonl);
  ASSERT_TRUE(MetricsLogger::choose_sinks({"wandb", "mlflow"}, options).ok());
  EXPECT_THAT(options.trackers, ElementsAre("wandb", "mlflow"));
  const Status status = MetricsLogger::choose_sinks({"wandbb"}, options);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tensorboard"));
}

TEST(MetricsLogger, ValidationsGoToTensorBoard) {
  const TemporaryFolder folder;
  {
    MetricsLogger logger = open_quietly(folder.path(), 0);
    ASSERT_TRUE(logger.log_validation(0, {{"val/loss", 2}}).ok());
    ASSERT_TRUE(logger.log(1, {{"train/loss", 1}}).ok());
    ASSERT_TRUE(logger.log_validation(1, {{"val/loss", 1}}).ok());
  }
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), 4u);  // and the version
  EXPECT_THAT(contents_of(only_event_file(folder.path())), HasSubstr("val/loss"));
  EXPECT_THAT(steps_of(folder.path() / kMetricsFile), ElementsAre(1));
  // Resumed at step 1, nothing is there twice.
  (void)open_quietly(folder.path(), 1);
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), 4u);
  // A run that was killed before its first checkpoint validates again before its first step.
  (void)open_quietly(folder.path(), -1);
  EXPECT_EQ(count_records(contents_of(only_event_file(folder.path()))), 1u);
}

TEST(MetricsLogger, ConsoleLine) {
  const Metrics metrics = {{"actor/ppo_kl", 0.00123456},
                           {"response_length/mean", 1234.56},
                           {"timing_s/step", 12.54},
                           {"z", 1e9}};
  const std::vector<ConsoleKey> keys = {{"timing_s/step", "", " s"},
                                        {"absent", "absent"},
                                        {"response_length/mean", "length"},
                                        {"actor/ppo_kl", "a label that is too long"},
                                        {"z", "z"}};
  EXPECT_EQ(console_line(3, 20, metrics, keys, 80),
            "step 3/20  12.5 s  length 1235  a label that is too long 0.00123  z 1e+09");
  // The most important first; what has no room is left out.
  EXPECT_EQ(console_line(3, 20, metrics, keys, 40), "step 3/20  12.5 s  length 1235  z 1e+09");
  EXPECT_EQ(console_line(3, 0, metrics, {{"z", "z"}}, 80), "step 3  z 1e+09");
}

}  // namespace
}  // namespace neap::report

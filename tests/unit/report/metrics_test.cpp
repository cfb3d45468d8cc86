#include "report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/file.h"
#include "conformance/sanitizer.h"
#include "report/append_file.h"
#include "report/run_folder.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string contents_of(const std::filesystem::path& path) {
  auto contents = read_file(path);
  EXPECT_TRUE(contents.ok()) << contents.status().message();
  return contents.ok() ? contents.value() : std::string();
}

void append_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

std::vector<std::uint64_t> steps_of(const std::filesystem::path& path) {
  std::vector<std::uint64_t> steps;
  auto lines = StepLog::read(path);
  EXPECT_TRUE(lines.ok()) << lines.status().message();
  if (lines.ok()) {
    for (const Json& line : *lines) steps.push_back(line["step"].get<std::uint64_t>());
  }
  return steps;
}

MetricsLogger open_quietly(const std::filesystem::path& folder,
                           std::optional<std::int64_t> resume_step = std::nullopt) {
  MetricsOptions options;
  options.folder = folder;
  options.console = false;
  options.resume_step = resume_step;
  auto logger = MetricsLogger::open(options);
  EXPECT_TRUE(logger.ok()) << logger.status().message();
  return std::move(logger).value();
}

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

TEST(StepLog, KeepsRowsWhileTheDiskIsFullAndLeavesNoTornLine) {
  const TemporaryFolder folder;
  // A file-size limit stands in for a full disk: the write stops in the middle of the line.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{100, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto log = StepLog::open(folder.path() / kMetricsFile, std::nullopt);
    if (!log.ok()) ::_exit(1);
    const Json fields = {{"loss", 0.125}, {"name", std::string(40, 'x')}};
    if (!log->append(1, fields).ok() || !log->append(2, fields).ok()) ::_exit(2);
    if (log->sync().code() != ErrorCode::kIo) ::_exit(3);
    if (steps_of(folder.path() / kMetricsFile) != std::vector<std::uint64_t>{1}) ::_exit(4);
    limit.rlim_cur = RLIM_INFINITY;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::_exit(log->append(3, {{"a", 1}}).ok() ? 0 : 5);
  }
  int ended = 0;
  ::waitpid(child, &ended, 0);
  ASSERT_TRUE(WIFEXITED(ended));
  EXPECT_EQ(WEXITSTATUS(ended), 0);
  EXPECT_THAT(steps_of(folder.path() / kMetricsFile), ElementsAre(1, 2, 3));
}

TEST(AppendFile, FailsWhereMoreWouldBeKeptThanFits) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "log";
  const std::string most(AppendFile::kMostKept, 'x');
  // A file-size limit stands in for a full disk.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{3, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto log = AppendFile::open(path);
    if (!log.ok() || !log->write_or_keep("on").ok()) ::_exit(1);
    if (!log->write_or_keep(most).ok()) ::_exit(2);
    if (log->write_or_keep("refused").code() != ErrorCode::kIo) ::_exit(3);
    if (contents_of(path) != "on") ::_exit(4);
    limit.rlim_cur = RLIM_INFINITY;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::_exit(log->write_or_keep("off").ok() ? 0 : 5);
  }
  int ended = 0;
  ::waitpid(child, &ended, 0);
  ASSERT_TRUE(WIFEXITED(ended));
  EXPECT_EQ(WEXITSTATUS(ended), 0);
  EXPECT_TRUE(contents_of(path) == "on" + most + "off");
}

TEST(StepLog, IsMadeAgainWhereItWasRemovedAndFollowsItsFolder) {
  const TemporaryFolder folder;
  const std::filesystem::path before = folder.path() / "before", after = folder.path() / "after";
  std::filesystem::create_directory(before);
  auto log = StepLog::open(before / kMetricsFile, std::nullopt);
  ASSERT_TRUE(log.ok());
  ASSERT_TRUE(log->append(1, {{"a", 1}}).ok());
  std::filesystem::rename(before, after);
  std::filesystem::create_directory(before);  // another run's
  ASSERT_TRUE(log->append(2, {{"a", 1}}).ok());
  EXPECT_THAT(steps_of(after / kMetricsFile), ElementsAre(1, 2));
  std::filesystem::remove(after / kMetricsFile);
  ASSERT_TRUE(log->append(3, {{"a", 1}}).ok());
  EXPECT_THAT(steps_of(after / kMetricsFile), ElementsAre(3));
  EXPECT_FALSE(std::filesystem::exists(before / kMetricsFile));
  std::filesystem::remove_all(after);
  EXPECT_TRUE(log->append(4, {{"a", 1}}).ok());
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

TEST(StepLog, AResumedRunLeavesOutWhateverStepIsLater) {
  const TemporaryFolder folder;
  const auto path = folder.path() / kMetricsFile;
  append_text(path, "{\"step\":1}\n{\"step\":18446744073709551615}\n{\"step\":2}\n");
  ASSERT_TRUE(StepLog::open(path, 1).ok());
  EXPECT_THAT(steps_of(path), ElementsAre(1));
  ASSERT_TRUE(StepLog::open(path, -1).ok());
  EXPECT_THAT(steps_of(path), ElementsAre());
}

TEST(StepLog, ABrokenLineIsNamed) {
  const TemporaryFolder folder;
  const auto path = folder.path() / kMetricsFile;
  append_text(path, "{\"step\":1}\n{\"stop\":2}\n");
  auto lines = StepLog::read(path);
  ASSERT_FALSE(lines.ok());
  EXPECT_THAT(lines.status().message(), HasSubstr("metrics.jsonl:2"));
  auto log = StepLog::open(path, 1);
  EXPECT_FALSE(log.ok());
  EXPECT_EQ(contents_of(path), "{\"step\":1}\n{\"stop\":2}\n");
}

TEST(StepLog, ASparseFileIsNotReadWhole) {
  const TemporaryFolder folder;
  const auto path = folder.path() / kMetricsFile;
  append_text(path, "{\"step\":1}\n");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  for (const Status& status : {StepLog::read(path).status(), StepLog::open(path, 1).status(),
                               StepLog::for_each(path, [](const Json&) {})}) {
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("metrics.jsonl"), HasSubstr("the rest is a hole")));
  }
}

TEST(PhaseLog, ALongOneTakesTheMemoryOfItsRecords) {
  constexpr int kRows = 10'000;
  const TemporaryFolder folder;
  PhaseRecord record;
  record.phase = "train";
  Json row = record.to_json();
  row["step"] = std::uint64_t{1};
  const std::string line = json_text(row) + "\n";
  std::string text;
  for (int i = 0; i < kRows; ++i) text += line;
  append_text(folder.path() / kPhasesFile, text);
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto records = PhaseLog::read(folder.path());
  ::getrusage(RUSAGE_SELF, &after);
  ASSERT_TRUE(records.ok()) << records.status().message();
  EXPECT_EQ(records->size(), static_cast<std::size_t>(kRows));
  // A sanitizer keeps what was freed.
  if (!kInstrumented) {
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 8 * 1024);  // KiB
  }
}

TEST(PhaseLog, RoundTrip) {
  const TemporaryFolder folder;
  PhaseRecord record;
  record.step = 4;
  record.phase = "train_actor";
  record.persistent = 3_GiB;
  record.transient_allocated = 5_MiB;
  record.transient_reserved = 8_MiB;
  record.peak = 4_GiB;
  record.fragmentation_at_peak = 3_MiB;
  record.moved = 7_B;
  record.seconds = 1.25;
  record.move_seconds = 0.5;
  record.moves = {{"pause", "rollout.kv", 3_MiB, 0.25, 0.25},
                  {"resume", "actor.grads", 5_B, 0.125, 0.0625, true}};
  record.streamed = {{"actor.prefetch", "gradients", 13_B, 11_B, 0.75}};
  record.peer_bytes = 17_B;
  record.peer_seconds = 0.375;
  record.peer_visible_seconds = 0.25;
  record.as_planned = true;
  {
    auto log = PhaseLog::open(folder.path(), std::nullopt);
    ASSERT_TRUE(log.ok());
    ASSERT_TRUE(log->append(record).ok());
  }
  auto records = PhaseLog::read(folder.path());
  ASSERT_TRUE(records.ok()) << records.status().message();
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ((*records)[0].step, 4u);
  EXPECT_EQ((*records)[0].to_json(), record.to_json());
  ASSERT_EQ((*records)[0].moves.size(), 2u);
  EXPECT_EQ((*records)[0].moves[0].copied, 3_MiB);
  EXPECT_EQ((*records)[0].moves[1].visible_seconds, 0.0625);
  EXPECT_TRUE((*records)[0].moves[1].behind);
  ASSERT_EQ((*records)[0].streamed.size(), 1U);
  EXPECT_EQ((*records)[0].streamed[0].to_device, 13_B);
  EXPECT_EQ((*records)[0].streamed[0].visible_seconds, 0.75);
  EXPECT_EQ((*records)[0].peer_bytes, 17_B);
  EXPECT_EQ((*records)[0].peer_visible_seconds, 0.25);
  Json old = record.to_json();
  old["step"] = std::uint64_t{4};
  EXPECT_TRUE(PhaseRecord::from_json(old).ok());
  const Json move = old["moves"][0];
  for (const auto& [key, value] : move.items()) {
    Json lacking = old;
    lacking["moves"][0].erase(key);
    lacking["moves"][0]["seconds"] = 0.5;
    EXPECT_FALSE(PhaseRecord::from_json(lacking).ok()) << key;
  }
  for (const double wrong : {-1.0, 1e300}) {
    for (const char* const path :
         {"/seconds", "/move_seconds", "/moves/0/copy_seconds", "/moves/1/exposed_seconds",
          "/streamed/0/exposed_seconds", "/communication_seconds"}) {
      Json absurd = old;
      absurd[Json::json_pointer(path)] = wrong;
      EXPECT_THAT(PhaseRecord::from_json(absurd).status().message(), HasSubstr("0 to 1e9")) << path;
    }
  }
  old["moves"] = Json::array();
  old["streamed"][0].erase("to_host");
  EXPECT_FALSE(PhaseRecord::from_json(old).ok());
  for (const char* key : {"moves", "streamed", "as_planned", "communication_bytes"}) old.erase(key);
  const auto older = PhaseRecord::from_json(old);
  ASSERT_TRUE(older.ok()) << older.status().message();
  EXPECT_TRUE(older->moves.empty());
  old["moves"] = "none";
  EXPECT_FALSE(PhaseRecord::from_json(old).ok());

  append_text(folder.path() / kPhasesFile, "{\"step\":5,\"phase\":\"x\",\"persistent\":-1}\n");
  records = PhaseLog::read(folder.path());
  ASSERT_FALSE(records.ok());
  EXPECT_THAT(records.status().message(), HasSubstr("persistent"));
  EXPECT_THAT(records.status().message(), HasSubstr("line 2"));
}

}  // namespace
}  // namespace neap::report

// Logs of steps and phases: lines that are appended, and what is left of them after a failure.
#include "report/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/sanitizer.h"
#include "metrics_folder.h"
#include "report/append_file.h"
#include "report/run_folder.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

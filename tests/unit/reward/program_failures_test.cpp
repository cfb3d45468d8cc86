// What a run does about a program that fails: starts it again, takes defaults, stops asking.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "program_fixture.h"

namespace neap::reward {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Program, IsStartedAgainAfterAFailure) {
  python(R"(
for line in sys.stdin:
    if not os.path.exists("failed"):
        open("failed", "w").close()
        sys.exit(1)
    items = json.loads(line)["items"]
    print(json.dumps([float(i["response"]) for i in items]), flush=True)
)");
  config_.retries = 1;
  EXPECT_THAT(values(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST_F(Program, CanBeReplacedByADefaultScore) {
  python(R"(
for line in sys.stdin:
    items = json.loads(line)["items"]
    if items[0]["response"] == "3":
        time.sleep(100)
    print(json.dumps([float(i["response"]) for i in items]), flush=True)
)");
  config_.timeout = 5;  // a busy machine takes a second to start Python
  config_.retries = 0;
  config_.on_failure = "default";
  config_.default_score = -1;
  EXPECT_THAT(values(), ElementsAre(0, 1, 2, -1, -1, -1, 6)) << "and what follows is asked";
  EXPECT_LT(seconds_, 60);
  EXPECT_THAT(values(3), ElementsAre(0, 1, 2)) << "the next step asks again";
}

TEST_F(Program, ThatIsSilentTwiceInARowIsAskedNoMore) {
  shell("while read line; do echo >> asked; sleep 100; done");
  config_.timeout = 1;
  config_.retries = 0;
  config_.batch_size = 1;
  config_.on_failure = "default";
  EXPECT_THAT(values(), ElementsAre(0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(fs::file_size(folder_ / "asked"), 2U);
}

TEST_F(Program, HasADefaultForEachResponseWithoutAScore) {
  python(R"(
for line in sys.stdin:
    items = json.loads(line)["items"]
    scores = [float(i["response"]) for i in items]
    for at, each in enumerate(scores):
        if each in (1, 2): scores[at] = {"error": "no such unit"}
        if each == 4: scores[at] = None
    print(json.dumps({"scores": scores}), flush=True)
)");
  config_.retries = 1;
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(score().status().message(),
              AllOf(HasSubstr("failed: no such unit; the row is {\"prompt\":\"p\""),
                    HasSubstr("the response \"1\" (and 1 more of 3 responses)")));
  config_.on_failure = "default";
  config_.default_score = -1;
  function_.reset();
  EXPECT_THAT(values(), ElementsAre(0, -1, -1, 3, -1, 5, 6));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("3 of 7 responses get default_score -1: failed: no such unit"));
}

TEST_F(Program, IsAskedAgainAboutTheOthersWhereOneHasNoScore) {
  python(R"(
for line in sys.stdin:
    items = json.loads(line)["items"]
    with open("requests", "a") as requests: print("request", file=requests)
    bad = [at for at, i in enumerate(items) if i["response"] in "023"]
    if bad: print(json.dumps({"error": "too hard", "item": bad[0], "retry": False}), flush=True)
    else: print(json.dumps([float(i["response"]) for i in items]), flush=True)
)");
  config_.on_failure = "default";
  config_.default_score = -1;
  EXPECT_THAT(values(), ElementsAre(-1, 1, -1, -1, 4, 5, 6));
  EXPECT_EQ(fs::file_size(folder_ / "requests"), 6 * 8U) << "none of them twice";
}

TEST_F(Program, ThatEndsAfterOneRequestIsToldToGoOn) {
  shell("read line; exit 0");
  expect_failure("closed its stdout; it ended with exit code 0. The program must run on: it reads");
}

TEST_F(Program, CopiesThatHangAreKilledTogether) {
  shell("trap '' TERM; while true; do sleep 100; done");
  config_.batch_size = 1;
  config_.timeout = 1;
  config_.retries = 0;
  const auto seconds_of = [&](std::size_t copies) {
    config_.concurrency = static_cast<std::int64_t>(copies);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(score(copies).status().message(), HasSubstr("gave no answer in 1 s"));
    function_.reset();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // One after another, 12 took 12 times as long as one.
  const double one = seconds_of(1);
  EXPECT_LT(seconds_of(12), 6 * one);
}

TEST_F(Program, SeesNoSecrets) {
  shell(
      "while read line; do if [ -z \"$NEAP_TEST_TOKEN\" ]; then echo '[0,0]'; else echo '[1,1]'; "
      "fi; done");
  ::setenv("NEAP_TEST_TOKEN", "secret", 1);
  EXPECT_THAT(values(2), ElementsAre(0, 0));
  function_.reset();
  config_.env = {"NEAP_TEST_TOKEN"};
  EXPECT_THAT(values(2), ElementsAre(1, 1));
  function_.reset();
  config_.env = {"NEAP_TEST_TOKEN="};
  EXPECT_THAT(values(2), ElementsAre(0, 0));
}

TEST_F(Program, HasLimits) {
  config_.memory_limit = 300_MiB;
  config_.file_size_limit = 1_MiB;
  python(R"(
for line in sys.stdin:
    scores = []
    try:
        bytearray(400 << 20)
    except MemoryError:
        scores.append(1)
    try:
        open("large", "wb").write(bytes(2 << 20))
    except OSError:
        scores.append(2)
    print(json.dumps(scores), flush=True)
)");
  EXPECT_THAT(values(2), ElementsAre(1, 2));
}

TEST_F(Program, ThatFailsIsToldBeforeTheLastAttempt) {
  shell("while read line; do echo '[]'; done");
  config_.retries = 2;
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(score().status().message(), HasSubstr("(attempt 3 of 3)"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said,
              HasSubstr("Reward \"program\": attempt 1 of 3 failed: it gave 0 scores for 3 items"));
  EXPECT_THAT(said, HasSubstr("attempt 2 of 3 failed"));
}

TEST_F(Program, ThatHangsIsLeftWhenTheRunIsStopped) {
  shell("while read line; do sleep 100; done");
  const auto start = std::chrono::steady_clock::now();
  stop_ = [start] {
    return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(300);
  };
  config_.on_failure = "default";
  config_.timeout = 60;
  EXPECT_EQ(score().status().code(), ErrorCode::kCancelled);
  EXPECT_LT(seconds_, 30);
}

}  // namespace
}  // namespace neap::reward

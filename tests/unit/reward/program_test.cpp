#include "reward/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "reward/service.h"

namespace neap::reward {
namespace {

namespace fs = std::filesystem;
using spec::RewardFunctionConfig;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A program in sh or python, over rows with the numbers 0, 1, 2 ... as responses.
class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              (std::string("neap_program_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    config_.kind = spec::RewardKind::kProgram;
    config_.timeout = 20;
    config_.batch_size = 3;
  }
  void TearDown() override {
    function_.reset();
    fs::remove_all(folder_);
  }
  void python(const char* body) {
    std::ofstream(folder_ / "judge.py") << "import json, os, signal, sys, time\n" << body;
    config_.command = {"python3", "judge.py"};
  }
  void shell(const char* body) { config_.command = {"sh", "-c", body}; }
  Result<std::vector<Score>> score(std::size_t count = 7) {
    if (!function_) {
      auto transport = start_program(config_, {.folder = folder_, .stop = stop_});
      if (!transport.ok()) return transport.status();
      function_ = make_service(config_, {.prompt_key = "prompt"}, std::move(*transport));
    }
    std::vector<std::string> texts;
    texts.reserve(count);
    for (std::size_t i = 0; i < count; ++i) texts.push_back(std::to_string(i));
    std::vector<Response> responses;
    responses.reserve(count);
    for (const std::string& text : texts) responses.push_back({&row_, text, 1, false});
    const auto start = std::chrono::steady_clock::now();
    auto out = function_->score(responses);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return out;
  }
  std::vector<double> values(std::size_t count = 7) {
    const auto scores = score(count);
    EXPECT_TRUE(scores.ok()) << scores.status().message();
    std::vector<double> out;
    if (scores.ok())
      for (const Score& each : *scores) out.push_back(each.value);
    return out;
  }
  // Fails within the time that the configuration allows, with `part` in the message.
  void expect_failure(const char* part) {
    config_.retries = 1;
    const auto scores = score();
    ASSERT_FALSE(scores.ok());
    EXPECT_THAT(scores.status().message(), HasSubstr(part));
    EXPECT_THAT(scores.status().message(), HasSubstr("(attempt 2 of 2)"));
    EXPECT_LT(seconds_, 2 * (config_.timeout + kProcessSeconds));
  }
  static constexpr double kProcessSeconds = 3;

  fs::path folder_;
  RewardFunctionConfig config_;
  Json row_ = Json::parse(R"({"prompt": "p", "answer": "42", "extra": [1]})");
  std::unique_ptr<RewardFunction> function_;
  std::function<bool()> stop_;
  double seconds_ = 0;
};

constexpr const char* kGood = R"(
for line in sys.stdin:
    items = json.loads(line)["items"]
    print(json.dumps({"scores": [float(i["response"]) for i in items]}), flush=True)
)";

TEST_F(Program, ScoresBatchesInOrder) {
  python(kGood);
  EXPECT_THAT(values(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values(2), ElementsAre(0, 1)) << "the same process again";
  EXPECT_TRUE(values(0).empty());
}

TEST_F(Program, KeepsTheOrderOfCopiesThatTakeDifferentTimes) {
  python(R"(
for line in sys.stdin:
    items = json.loads(line)["items"]
    time.sleep(0.3 if items[0]["response"] == "0" else 0)
    print(json.dumps([float(i["response"]) for i in items]), flush=True)
)");
  config_.concurrency = 3;
  config_.batch_size = 1;
  EXPECT_THAT(values(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST_F(Program, SeesTheRowAndGivesParts) {
  python(R"(
for line in sys.stdin:
    out = []
    for i in json.loads(line)["items"]:
        assert i["prompt"] == "p" and i["truncated"] is False and i["row"]["extra"] == [1], i
        out.append({"score": 0.5, "acc": i["ground_truth"] == "42", "note": "text"})
    print(json.dumps({"scores": out}), flush=True)
)");
  config_.log = {"acc", "missing"};
  const auto scores = score(1);
  ASSERT_TRUE(scores.ok()) << scores.status().message();
  EXPECT_EQ((*scores)[0].value, 0.5);
  EXPECT_EQ((*scores)[0].parts[0], 1);
  EXPECT_TRUE(std::isnan((*scores)[0].parts[1]));
}

TEST_F(Program, ThatIsMissingIsNamed) {
  config_.command = {"./no-such-program"};
  EXPECT_THAT(score().status().message(),
              AllOf(HasSubstr("Cannot start \"./no-such-program\""), HasSubstr("No such file")));
}

TEST_F(Program, ThatHangsCostsBoundedTime) {
  shell("while read line; do sleep 100; done");
  config_.timeout = 0.3;
  expect_failure("gave no answer in 0.3 s");
}

TEST_F(Program, ThatDoesNotReadCostsBoundedTime) {
  shell("sleep 100");
  config_.timeout = 0.3;
  row_["extra"] = std::string(1 << 20, 'x');  // more than a pipe holds
  expect_failure("gave no answer in 0.3 s");
}

TEST_F(Program, ThatIgnoresSigtermIsKilledWithItsChildren) {
  shell("trap '' TERM; sleep 100 & echo $! > child; while true; do sleep 100; done");
  config_.timeout = 0.5;
  expect_failure("gave no answer in 0.5 s");
  std::ifstream file(folder_ / "child");
  pid_t child = 0;
  ASSERT_TRUE(file >> child);
  for (int i = 0; i < 100 && ::kill(child, 0) == 0; ++i) {
    // A zombie until init takes it.
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    if (text.find(") Z ") != std::string::npos) return;
    ::usleep(10000);
  }
  EXPECT_NE(::kill(child, 0), 0);
}

TEST_F(Program, ThatTricklesCostsBoundedTime) {
  shell("read line; while true; do printf 1; sleep 0.05; done");
  config_.timeout = 0.5;
  expect_failure("gave no answer in 0.5 s");
}

TEST_F(Program, ThatDiesIsQuotedWithItsStderr) {
  shell("read line; echo 'model file is missing' >&2; exit 7");
  expect_failure("it ended with exit code 7; its stderr ends with:\nmodel file is missing");
}

TEST_F(Program, ThatIsKilledIsNamed) {
  shell("read line; kill -9 $$");
  expect_failure("it was ended by signal 9");
}

TEST_F(Program, ThatPrintsNonsenseIsQuoted) {
  shell("while read line; do echo 'Loading model ...'; done");
  expect_failure("answered with what is not JSON: Loading model ...");
}

TEST_F(Program, ThatPrintsWithoutEndIsStopped) {
  config_.timeout = 100;
  shell("read line; yes | tr -d '\\n'");
  expect_failure("MiB without an end of line");
}

TEST_F(Program, ThatFillsStderrStillAnswers) {
  python(R"(
for line in sys.stdin:
    sys.stderr.write("x" * 1000000)
    items = json.loads(line)["items"]
    print(json.dumps([1.0] * len(items)), flush=True)
)");
  EXPECT_THAT(values(3), ElementsAre(1, 1, 1));
}

TEST_F(Program, WithTheWrongCountIsRefused) {
  shell("while read line; do echo '[1]'; done");
  expect_failure("gave 1 scores for 3 items");
}

TEST_F(Program, WithScoresThatAreNoNumbersIsRefused) {
  for (const char* reply :
       {"[1, 2, null]", "[1, 2, \\\"x\\\"]", "[1, 2, {}]", "[1, 2, {\\\"score\\\": true}]"}) {
    function_.reset();
    const std::string body = std::string("while read line; do echo \"") + reply + "\"; done";
    shell(body.c_str());
    expect_failure("as the score of item 2; a finite number is wanted");
  }
  for (const char* reply : {"[1, 2, NaN]", "[1, 2, 1e999]", "{", ""}) {
    function_.reset();
    const std::string body = std::string("while read line; do echo '") + reply + "'; done";
    shell(body.c_str());
    expect_failure("answered with what is not JSON");
  }
  function_.reset();
  shell("while read line; do echo '{\"score\": 1}'; done");
  expect_failure("is wanted");
}

TEST_F(Program, ThatAnswersTwiceIsRefused) {
  shell("while read line; do printf '[1,1,1]\\n[1,1,1]\\n'; done");
  expect_failure("wrote more than one line for a request");
}

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
  EXPECT_LT(seconds_, 25);
  EXPECT_THAT(values(3), ElementsAre(0, 1, 2)) << "the next step asks again";
}

TEST_F(Program, ThatIsSilentTwiceInARowIsAskedNoMore) {
  shell("while read line; do echo >> asked; sleep 100; done");
  config_.timeout = 0.5;
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
  config_.concurrency = 12;
  config_.batch_size = 1;
  config_.timeout = 1;
  config_.retries = 0;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(score(12).status().message(), HasSubstr("gave no answer in 1 s"));
  function_.reset();
  // One after another they took 12 s.
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 8);
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
  EXPECT_LT(seconds_, 10);
}

TEST_F(Program, CanSayWhatIsWrongWithAnItem) {
  shell("while read line; do echo '{\"error\": \"no such unit\", \"item\": 1}'; done");
  config_.retries = 0;
  EXPECT_THAT(
      score().status().message(),
      AllOf(HasSubstr("failed: no such unit; the row is {\"prompt\":\"p\",\"answer\":\"42\""),
            HasSubstr("the response \"1\"")));
}

TEST_F(Program, EndsWithTheEndOfItsInput) {
  python(R"(
for line in sys.stdin:
    print("[1]", flush=True)
open("ended", "w").close()
)");
  EXPECT_THAT(values(1), ElementsAre(1));
  function_.reset();
  EXPECT_TRUE(fs::exists(folder_ / "ended"));
}

}  // namespace
}  // namespace neap::reward

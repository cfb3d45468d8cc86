#include "reward/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "program_fixture.h"

namespace neap::reward {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  config_.timeout = 1;  // until then it has to write "child"
  expect_failure("gave no answer in 1 s");
  std::ifstream file(folder_ / "child");
  pid_t child = 0;
  ASSERT_TRUE(file >> child);
  for (int i = 0; i < 1000 && ::kill(child, 0) == 0; ++i) {
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
  expect_failure("wrote a line that is over the limit of 64 MiB");
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

TEST_F(Program, WithDeeplyNestedScoresIsRefused) {
  shell("nested=$(printf '%600s' | tr ' ' '['); while read line; do echo $nested; done");
  expect_failure("gave a reply that nests over the limit of 500");
}

TEST_F(Program, ThatAnswersTwiceIsRefused) {
  shell("while read line; do printf '[1,1,1]\\n[1,1,1]\\n'; done");
  expect_failure("wrote more than one line for a request");
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

// kind = "python": a user's function behind python_worker.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "reward/reward_set.h"

namespace neap::reward {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class PythonFunction : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / (std::string("neap_function_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "code");
    config_.kind = spec::RewardKind::kPython;
    config_.path = "code/judge.py";
    config_.timeout = 30;
    config_.retries = 0;
    for (int i = 0; i < 3; ++i)
      rows_.push_back(Json::parse(
          R"({"data_source": "sums", "prompt": "p", "reward_model": {"ground_truth": [)" +
          std::to_string(i) + R"(]}, "extra_info": {"index": )" + std::to_string(i) +
          R"(}, "level": "easy"})"));
  }
  void TearDown() override { fs::remove_all(folder_); }
  void judge(const std::string& text) { std::ofstream(folder_ / "code" / "judge.py") << text; }
  Result<std::vector<Score>> scores() {
    NEAP_TRY_ASSIGN(const auto function,
                    make_function(config_, {.prompt_key = "prompt", .folder = folder_}));
    std::vector<Response> responses;
    const std::vector<std::string> texts = {"0", "one", "2"};
    for (std::size_t i = 0; i < rows_.size(); ++i)
      responses.push_back({&rows_[i], texts[i], 1, false, where_[i]});
    return function->score(responses);
  }
  std::vector<double> values() {
    const auto found = scores();
    EXPECT_TRUE(found.ok()) << found.status().message();
    std::vector<double> out;
    if (found.ok())
      for (const Score& each : *found) out.push_back(each.value);
    return out;
  }
  std::string error() {
    const auto found = scores();
    return found.ok() ? "no error" : found.status().message();
  }

  fs::path folder_;
  spec::RewardFunctionConfig config_;
  std::vector<Json> rows_;
  std::vector<std::string> where_ = {"a.jsonl:1", "a.jsonl:2", "a.jsonl:3"};
};

TEST_F(PythonFunction, WithTheSignatureOfVerl) {
  judge(R"(
import helper
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "sums" and ground_truth == [extra_info["index"]], (ground_truth, extra_info)
    return helper.score(solution_str, ground_truth)
)");
  std::ofstream(folder_ / "code" / "helper.py")
      << "def score(text, truth):\n    return text == str(truth[0])\n";
  EXPECT_THAT(values(), ElementsAre(1, 0, 1));
}

TEST_F(PythonFunction, InBatchesAndAsynchronously) {
  judge(R"(
import asyncio
def batch(data_sources, solution_strs, ground_truths, extra_infos, **more):
    return [len(text) for text in solution_strs]
async def later(solution_str, **more):
    await asyncio.sleep(0.5)
    return {"score": len(solution_str), "acc": True, "reason": "its length"}
)");
  config_.function = "batch";
  EXPECT_THAT(values(), ElementsAre(1, 3, 1));
  config_.function = "later";
  config_.log = {"acc"};
  const auto found = scores();
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)[1].value, 3);
  EXPECT_EQ((*found)[1].parts[0], 1);
  EXPECT_EQ((*found)[1].reason, "its length");
}

TEST_F(PythonFunction, WithTheSignatureOfTrl) {
  judge(R"(
def score(completions, prompts, level, **columns):
    assert level == ["easy"] * 3 and columns["data_source"][0] == "sums" and "prompt" not in columns
    assert prompts == ["p"] * 3
    return [None if text == "one" else float(text) for text in completions]
)");
  config_.function = "score";
  const std::vector<double> found = values();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[2], 2);
  EXPECT_TRUE(std::isnan(found[1])) << "it has nothing to say about it";
  for (Json& row : rows_) row["prompt"] = Json::parse(R"([{"role": "user", "content": "p"}])");
  judge(R"(
def score(completions, **columns):
    return [len(messages[0]["content"]) * (messages[0]["role"] == "assistant") for messages in completions]
)");
  EXPECT_THAT(values(), ElementsAre(1, 3, 1));
}

TEST_F(PythonFunction, MayPrintAndReadAndStartPrograms) {
  judge(R"(
import os, subprocess, sys
print("importing")
def compute_score(solution_str, **more):
    print("scoring", solution_str, '{"scores": [9, 9, 9]}')
    os.write(1, b"raw\n")
    subprocess.run(["sh", "-c", "echo from a program; cat"], check=True)
    assert sys.stdin.read() == ""
    return 1
)");
  EXPECT_THAT(values(), ElementsAre(1, 1, 1));
}

TEST_F(PythonFunction, ImportsNothingFromTheWorkingFolderAndHidesNothing) {
  std::ofstream(folder_ / "json.py") << "raise RuntimeError('of the working folder')\n";
  std::ofstream(folder_ / "code" / "json.py") << "raise RuntimeError('next to the file')\n";
  judge(
      "import json, base64\ndef compute_score(solution_str, **more):\n    return "
      "json.loads('2')\n");
  EXPECT_THAT(values(), ElementsAre(2, 2, 2));
}

TEST_F(PythonFunction, ThatRaisesIsShownWithLineAndRow) {
  judge(
      "def number(text):\n    return int(text)\ndef compute_score(solution_str, **more):\n    "
      "return number(solution_str)\n");
  EXPECT_THAT(
      error(),
      AllOf(HasSubstr("judge.py:2 in number, return int(text): ValueError: invalid literal"),
            HasSubstr("the row is a.jsonl:2: {"), HasSubstr("the response \"one\"")));
  judge(
      "def compute_score(solution_strs, **more):\n    return [1 / len(t.strip('one')) for t in "
      "solution_strs]\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("judge.py:2 in"), HasSubstr("ZeroDivisionError"),
                             HasSubstr("a.jsonl:2")));
  for (const char* value : {"float('nan')", "'1'", "{}", "{'score': None}", "[1]"}) {
    judge(std::string("def compute_score(solution_str, **more):\n    return ") + value + "\n");
    EXPECT_THAT(error(), AllOf(HasSubstr("compute_score in "), HasSubstr("a.jsonl:1"))) << value;
  }
  judge("import sys\ndef compute_score(solution_str, **more):\n    sys.exit(0)\n");
  EXPECT_THAT(error(), HasSubstr("judge.py:3 in compute_score, sys.exit(0): SystemExit"));
}

TEST_F(PythonFunction, CostsOnlyTheResponsesThatItRaisesFor) {
  config_.on_failure = "default";
  config_.default_score = -1;
  judge(
      "def one(solution_str, **more):\n    return int(solution_str) + 5\n"
      "async def later(solution_str, **more):\n    return int(solution_str) + 5\n"
      "def batch(solution_strs, **more):\n    return [int(t) + 5 for t in solution_strs]\n"
      "def trl(completions, **more):\n    return [int(t) + 5 for t in completions]\n"
      "def none(solution_str, **more):\n    if solution_str != 'one': return int(solution_str) + "
      "5\n"
      "def nan(solution_strs, **more):\n    return [5, float('nan'), 7]\n");
  for (const char* function : {"one", "later", "batch", "trl", "none", "nan"}) {
    config_.function = function;
    EXPECT_THAT(values(), ElementsAre(5, -1, 7)) << function;
  }
}

TEST_F(PythonFunction, ThatReturnsNothingGivesNoScore) {
  judge("def compute_score(solution_str, **more):\n    if solution_str != 'one': return 1\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("compute_score in "), HasSubstr("judge.py gave None"),
                             HasSubstr("the row is a.jsonl:2: {")));
}

TEST_F(PythonFunction, WithAMistakeIsCalledOnce) {
  config_.retries = 2;
  judge(R"(
def note():
    open("calls", "a").write("x")
def mistake(solution_str, **more):
    note()
    return {}[solution_str]
class Busy(ValueError): pass
def busy(solution_str, **more):
    note()
    raise Busy("try again")
)");
  const auto calls = [&] {
    const auto out = fs::file_size(folder_ / "calls");
    fs::remove(folder_ / "calls");
    return out;
  };
  config_.function = "mistake";
  EXPECT_THAT(error(), AllOf(HasSubstr("KeyError: '0'"), Not(HasSubstr("attempt"))));
  EXPECT_EQ(calls(), 1U);
  config_.function = "busy";
  EXPECT_THAT(error(), AllOf(HasSubstr("Busy: try again"), HasSubstr("(attempt 3 of 3)")));
  EXPECT_EQ(calls(), 3U);
}

TEST_F(PythonFunction, ThatEndsItsProcessIsToldToReturn) {
  judge("import os\ndef compute_score(solution_str, **more):\n    os._exit(0)\n");
  EXPECT_THAT(error(), HasSubstr("ended with exit code 0. The function must return"));
}

TEST_F(PythonFunction, IsNotTheOnlyOneToHaveNothingToSay) {
  judge(
      "def compute_score(completions, **more):\n"
      "    return [None if t == 'one' else 2 for t in completions]\n");
  std::vector<Response> responses;
  const std::vector<std::string> texts = {"0", "one"};
  for (std::size_t i = 0; i < texts.size(); ++i)
    responses.push_back({&rows_[i], texts[i], 1, false, where_[i]});
  spec::RewardConfig config;
  config.functions.push_back(config_);
  Setting setting{.prompt_key = "prompt", .folder = folder_};
  const auto totals = [&]() -> Result<std::vector<double>> {
    NEAP_TRY_ASSIGN(RewardSet set, RewardSet::make(config, setting));
    NEAP_TRY_ASSIGN(const auto numbers, set.score(responses));
    return std::vector<double>{set.total(numbers[0]), set.total(numbers[1])};
  };
  EXPECT_THAT(totals().status().message(),
              AllOf(HasSubstr("Reward \"python\" gave None"), HasSubstr("the row is a.jsonl:2,"),
                    HasSubstr("the response \"one\"")));
  config.functions[0].on_failure = "default";
  config.functions[0].default_score = -1;
  EXPECT_THAT(*totals(), ElementsAre(2, -1));
  config.functions[0].on_failure = "stop";
  setting.scored_by_model = true;
  EXPECT_THAT(*totals(), ElementsAre(2, 0));
  setting.scored_by_model = false;
  spec::RewardFunctionConfig other;
  other.kind = spec::RewardKind::kRegex;
  other.pattern = "one";
  other.weight = 0;
  config.functions.push_back(other);
  EXPECT_THAT(totals().status().message(), HasSubstr("gave None")) << "the other only measures";
  config.functions[1].weight = 3;
  EXPECT_THAT(*totals(), ElementsAre(2, 3));
}

TEST_F(PythonFunction, ThatCannotBeCalledIsNamedBeforeTheFirstResponse) {
  EXPECT_THAT(error(), HasSubstr("code/judge.py is not a file"));
  judge("def compute_score(solution_str)\n    return 1\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("judge.py:1: SyntaxError"), HasSubstr("")));
  judge("import no_such_package\n");
  EXPECT_THAT(error(),
              HasSubstr("judge.py:1 in <module>, import no_such_package: ModuleNotFoundError"));
  judge("def other(x):\n    return 1\n");
  EXPECT_THAT(error(), HasSubstr("has no function \"compute_score\"; it has other."));
  judge("def compute_score(text, truth):\n    return 1\n");
  EXPECT_THAT(
      error(),
      HasSubstr(
          "has the parameters (text, truth); it can be compute_score(data_source, solution_str"));
  judge("def compute_score(solution_str, tokenizer, **more):\n    return 1\n");
  EXPECT_THAT(error(), HasSubstr("wants \"tokenizer\", which is not given"));
  const auto found = scores();
  EXPECT_EQ(found.status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(PythonFunction, SeesNoSecretsUnlessItIsGiven) {
  ::setenv("NEAP_TEST_TOKEN", "secret", 1);
  judge(
      "import os\ndef compute_score(solution_str, **more):\n    return 'NEAP_TEST_TOKEN' in "
      "os.environ\n");
  EXPECT_THAT(values(), ElementsAre(0, 0, 0));
  config_.env = {"NEAP_TEST_*"};
  EXPECT_THAT(values(), ElementsAre(1, 1, 1));
  config_.env = {"NEAP_TEST_MISSING"};
  EXPECT_THAT(
      error(),
      HasSubstr("env names the environment variable \"NEAP_TEST_MISSING\", which is not set"));
}

}  // namespace
}  // namespace neap::reward

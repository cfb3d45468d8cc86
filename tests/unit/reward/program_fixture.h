// A reward function that is a program, asked about responses 0 to 6.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "reward/program.h"
#include "reward/service.h"

namespace neap::reward {

// A program in sh or python, over rows with the numbers 0, 1, 2 ... as responses.
class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("neap_program_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    config_.kind = spec::RewardKind::kProgram;
    config_.timeout = 20;
    config_.batch_size = 3;
  }
  void TearDown() override {
    function_.reset();
    std::filesystem::remove_all(folder_);
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
    EXPECT_THAT(scores.status().message(), ::testing::HasSubstr(part));
    EXPECT_THAT(scores.status().message(), ::testing::HasSubstr("(attempt 2 of 2)"));
    EXPECT_LT(seconds_, 2 * (config_.timeout + kProcessSeconds));
  }
  static constexpr double kProcessSeconds = 10;

  std::filesystem::path folder_;
  spec::RewardFunctionConfig config_;
  Json row_ = Json::parse(R"({"prompt": "p", "answer": "42", "extra": [1]})");
  std::unique_ptr<RewardFunction> function_;
  std::function<bool()> stop_;
  double seconds_ = 0;
};

}  // namespace neap::reward

// Rates that are kept between `neap doctor` and plans.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "plan/rates/device_rates.h"
#include "plan/rates/rate_file.h"

namespace neap::plan {
namespace {

namespace fs = std::filesystem;

class RateFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / format("neap_rate_file-{}", ::getpid());
    fs::remove_all(folder_);
    ::setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
  }

  [[nodiscard]] static MeasuredRates record() {
    MeasuredRates r{
        "NVIDIA Test 80GB/x", "2026-11-22", {25e9, 26e9, 45e9, 1.5e12, 1e-13}, 0, 0, 0, 7e-6};
    r.half_flops = 300e12;
    r.single_flops = 20e12;
    r.fp8_flops = 550e12;
    return r;
  }
  // The file with one field changed, or removed where `value` is null.
  static void change(const std::string& key, const Json& value) {
    const fs::path file = save_rates(record()).value();
    Json json = parse_json(read_file(file).value(), file.string()).value();
    if (value.is_null()) {
      json.erase(key);
    } else {
      json[key] = value;
    }
    ASSERT_TRUE(write_file_atomic(file, json.dump()).ok());
  }
  fs::path folder_;
};

TEST_F(RateFile, WhatIsSavedIsWhatPlansTake) {
  EXPECT_FALSE(load_rates(record().gpu)->has_value());
  const auto file = save_rates(record());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->parent_path(), folder_ / "neap" / "rates");
  const auto found = load_rates(record().gpu);
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->has_value());
  const MeasuredRates& r = **found;
  EXPECT_EQ(r.date, "2026-11-22");
  EXPECT_EQ(r.device.to_host, 25e9);
  EXPECT_EQ(r.device.remap, 1e-13);
  EXPECT_EQ(r.single_flops, 20e12);
  EXPECT_FALSE(load_rates("another GPU")->has_value());

  const PlanRates rates = rates_of_gpu(record().gpu);
  EXPECT_EQ(rates.link.both, 45e9);
  EXPECT_EQ(rates.kernels.bytes, 1.5e12);
  EXPECT_EQ(rates.kernels.half_flops, 300e12);
  EXPECT_EQ(rates.kernels.fp8_flops, 550e12);
  EXPECT_EQ(rates.kernels.issue_seconds, 7e-6);
  EXPECT_EQ(rates.from, "measured on 2026-11-22 by neap doctor");
}

TEST_F(RateFile, WithoutProductsTheDefaultsAreSaid) {
  MeasuredRates r = record();
  r.half_flops = r.single_flops = r.issue_seconds = 0;
  ASSERT_TRUE(save_rates(r).ok());
  const PlanRates rates = rates_of_gpu(r.gpu);
  EXPECT_EQ(rates.kernels.half_flops, default_rates(true, 0).half_flops);
  EXPECT_EQ(rates.kernels.issue_seconds, default_rates(true, 0).issue_seconds);
  EXPECT_EQ(rates.from, "measured on 2026-11-22 by neap doctor, matrix products as on an H200");
}

TEST_F(RateFile, ARecordFromBeforeFp8IsTaken) {
  ASSERT_TRUE(save_rates(record()).ok());
  change("fp8_flops", nullptr);
  const PlanRates rates = rates_of_gpu(record().gpu);
  EXPECT_EQ(rates.kernels.half_flops, 300e12);
  EXPECT_EQ(rates.kernels.fp8_flops, default_rates(true, 0).fp8_flops);
}

TEST_F(RateFile, CorruptAndForeignFilesAreErrorsThatPlansIgnore) {
  struct Case {
    std::string key;
    Json value;
    std::string says;
  };
  const std::vector<Case> cases = {{"schema", 1, "has schema 1"},
                                   {"schema", nullptr, "holds no record"},
                                   {"gpu", "NVIDIA Other", "another GPU or host"},
                                   {"host", "elsewhere", "another GPU or host"},
                                   {"driver", 99000, "another driver"},
                                   {"date", 5, "has no date"},
                                   {"to_host", 0, "\"to_host\" 0"},
                                   {"both", -1.0, "\"both\" -1"},
                                   {"memory", "fast", "lacks \"memory\""},
                                   {"remap", nullptr, "lacks \"remap\""},
                                   {"issue_seconds", -1, "\"issue_seconds\" -1"}};
  for (const Case& c : cases) {
    change(c.key, c.value);
    const auto found = load_rates(record().gpu);
    ASSERT_FALSE(found.ok()) << c.key;
    EXPECT_NE(found.status().message().find(c.says), std::string::npos) << found.status().message();
    EXPECT_NE(found.status().message().find(folder_.string()), std::string::npos);
    EXPECT_EQ(rates_of_gpu(record().gpu).link.both, Link().both) << c.key;
  }
  const fs::path file = rate_file(record().gpu).value();
  for (const std::string& text : {std::string(), std::string("{\"schema\": 1,"), std::string("[1]"),
                                  std::string(1 << 20, ' ')}) {
    ASSERT_TRUE(write_file_atomic(file, text).ok());
    EXPECT_FALSE(load_rates(record().gpu).ok());
    EXPECT_EQ(rates_of_gpu(record().gpu).link.both, Link().both);
  }
}

TEST_F(RateFile, AFolderThatCannotBeMadeIsAnError) {
  ASSERT_TRUE(write_file_atomic(folder_, "x").ok());
  EXPECT_EQ(save_rates(record()).status().code(), ErrorCode::kIo);
  EXPECT_TRUE(load_rates(record().gpu).ok());
  // Relative paths are invalid.
  ::setenv("XDG_CACHE_HOME", "cache", 1);
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::setenv("HOME", folder_.c_str(), 1);
  EXPECT_EQ(rate_file("g")->parent_path(), folder_ / ".cache" / "neap" / "rates");
  ::unsetenv("HOME");
  EXPECT_EQ(rate_file("g").status().code(), ErrorCode::kNotFound);
  ::setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace neap::plan

#include "base/config.h"

#include <gtest/gtest.h>

namespace neap {
namespace {

struct Fields {
  bool on = false;
  std::int64_t count = 3;
  double rate = 0.5;
  std::string mode = "fast";
  Bytes memory = 1_GiB;
  std::vector<std::string> files;
  std::vector<std::string> means = {"walk"};
};

class Config : public ::testing::Test {
 protected:
  void SetUp() override {
    table_.bind("device.memory", &fields_.memory, "Size.");
    table_.bind("train.on", &fields_.on, "Switch.");
    table_.bind("train.count", &fields_.count, "How many.").in("steps").at_least(1).at_most(10);
    table_.bind("train.rate", &fields_.rate, "Rate.");
    table_.bind("train.mode", &fields_.mode, "Mode.").one_of({"fast", "slow"});
    table_.bind("data.files", &fields_.files, "Files.");
    table_.bind("data.means", &fields_.means, "Means.").one_of({"walk", "ride"});
  }
  std::string error(std::string_view toml) { return table_.load_text(toml, "a.toml").message(); }
  Fields fields_;
  ConfigTable table_;
};

TEST_F(Config, ReadsEveryType) {
  ASSERT_TRUE(table_
                  .load_text("[device]\nmemory='384MiB'\n[train]\non=true\ncount=4\nrate=1\nmode='"
                             "slow'\n[data]\nfiles=['a','b']\n",
                             "a.toml")
                  .ok());
  EXPECT_EQ(fields_.memory, 384_MiB);
  EXPECT_TRUE(fields_.on);
  EXPECT_EQ(fields_.count, 4);
  EXPECT_EQ(fields_.rate, 1.0);
  EXPECT_EQ(fields_.mode, "slow");
  EXPECT_EQ(fields_.files, (std::vector<std::string>{"a", "b"}));
}

TEST_F(Config, ErrorsNameFileLineKeyAndRemedy) {
  EXPECT_EQ(error("[train]\n\ncuont = 4\n"),
            "a.toml:3: unknown key \"train.cuont\"; did you mean \"train.count\"?");
  EXPECT_NE(
      error("[device]\nmemory = 384\n").find("a.toml:2: device.memory takes a size with its unit"),
      std::string::npos);
  EXPECT_NE(error("[train]\ncount = 11\n").find("the most is 10"), std::string::npos);
  EXPECT_NE(error("[train]\ncount = 'x'\n").find("takes an integer, not text"), std::string::npos);
  EXPECT_NE(error("[train]\nmode = 'x'\n").find("it can be \"fast\", \"slow\""), std::string::npos);
  EXPECT_NE(error("[train\n").find("a.toml:1:"), std::string::npos);
}

TEST_F(Config, EveryWordOfAListIsAChoice) {
  EXPECT_TRUE(table_.load_text("[data]\nmeans=['ride','walk']\n", "a.toml").ok());
  EXPECT_EQ(fields_.means, (std::vector<std::string>{"ride", "walk"}));
  EXPECT_TRUE(table_.apply_override("data.means=[]").ok());
  EXPECT_TRUE(fields_.means.empty());
  EXPECT_EQ(error("[data]\nmeans=['walk','fly']\n"),
            "a.toml:2: data.means is [\"walk\",\"fly\"]; it can hold \"walk\", \"ride\"");
  EXPECT_NE(table_.to_markdown().find("| `means` | list of `walk`, `ride` |"), std::string::npos);
}

TEST_F(Config, OverridesTakeBareWords) {
  EXPECT_TRUE(table_.apply_override("train.mode=slow").ok());
  EXPECT_TRUE(table_.apply_override("device.memory=2GiB").ok());
  EXPECT_TRUE(table_.apply_override("data.files=[\"x\"]").ok());
  EXPECT_TRUE(table_.apply_override("train.count=7").ok());
  EXPECT_EQ(fields_.mode, "slow");
  EXPECT_EQ(fields_.memory, 2_GiB);
  EXPECT_EQ(fields_.count, 7);
  EXPECT_FALSE(table_.apply_override("train.count").ok());
  EXPECT_FALSE(table_.apply_override("train.count=many").ok());
  std::string name = "x";
  table_.bind("train.name", &name, "Name.");
  EXPECT_TRUE(table_.apply_override("train.name=\"a b\"").ok());
  EXPECT_EQ(name, "a b");
  EXPECT_TRUE(table_.apply_override("train.name=\"\"").ok());
  EXPECT_EQ(name, "") << "quotes around nothing";
}

TEST_F(Config, WritesReferenceAndJson) {
  EXPECT_NE(table_.to_markdown().find("| `count` | integer, ≥ 1, ≤ 10 (steps) | `3` | How many. |"),
            std::string::npos);
  EXPECT_EQ(table_.to_json()["train"]["count"], 3);
}

}  // namespace
}  // namespace neap

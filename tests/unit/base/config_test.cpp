#include "base/config.h"

#include <gtest/gtest.h>

#include "base/budget.h"
#include "base/text.h"

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

TEST_F(Config, WhatIsNoUtf8IsAnError) {
  EXPECT_EQ(table_.apply_override("train.mode=caf\xE9").message(),
            "\"train.mode=caf\\xe9\" on the command line is not UTF-8");
  const Status utf16 = table_.load_text("\xFF\xFE[", "a.toml");
  EXPECT_EQ(utf16.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(utf16.message().find("a.toml: the file is UTF-16"), 0U) << utf16.message();
}

TEST_F(Config, AnEmptyValueTakesBackATextOrListThatIsEmptyByDefault) {
  std::string metric;
  table_.bind("train.metric", &metric, "Metric.");
  ASSERT_EQ(error("[train]\nmetric='loss'\nmode='slow'\n[data]\nfiles=['a']\n"), "ok");
  for (const char* key : {"train.metric", "data.files"}) {
    EXPECT_TRUE(table_.find(key)->is_set);
    EXPECT_TRUE(table_.apply_override(std::string(key) + "=").ok());
    EXPECT_FALSE(table_.find(key)->is_set) << key;
  }
  EXPECT_EQ(metric, "");
  EXPECT_TRUE(fields_.files.empty());
  for (const char* key : {"train.mode", "train.count", "device.memory", "data.means"})
    EXPECT_FALSE(table_.apply_override(std::string(key) + "=").ok()) << key;
}

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

TEST_F(Config, DeepTablesAreRefusedBeforeTheyAreParsed) {
  std::string parts = "a";
  for (int i = 1; i < 50'000; ++i) parts += ".a";
  const std::string tail =
      " nests over the limit of 100 levels for a configuration; check that the file is a "
      "configuration";
  for (const std::string& deep : {parts + " = 1\n", "[" + parts + "]\nb = 1\n",
                                  "v = " + std::string(50'000, '['), "v = {" + parts + " = 1}\n"})
    EXPECT_EQ(error("# a.b\n" + deep), "a.toml:2" + tail);
  for (const std::string& value : {std::string(50'000, '['), "{" + parts + "=1}"})
    EXPECT_TRUE(table_.apply_override("train.count=" + value).message().ends_with(tail));
  EXPECT_FALSE(table_.apply_override(parts + "=1").ok());
}

TEST_F(Config, DotsThatNestNothingAreTaken) {
  std::string list = "[";
  for (int i = 0; i < 500; ++i) list += (i % 2 == 0 ? "'a.b', " : "\"a.\\\"b\", ");
  const std::string dots(500, '.');
  EXPECT_EQ(error("[data] # " + dots + "\nfiles = " + list + "\n'" + dots + "', \"\"\"\n" + dots +
                  "\"\"\"\"\"]\n"),
            "ok");
  EXPECT_EQ(fields_.files.size(), 502U);
  // A list that does not end is the parser's to name.
  std::string open = "[train]\nx = [\n";
  for (int i = 0; i < 500; ++i) open += "rate = 0.5\n";
  EXPECT_EQ(error(open).find("nest"), std::string::npos);
}

TEST_F(Config, AKeyOfAMegabyteIsRefusedAtOnce) {
  const std::string key(1'000'000, 'a');
  const std::string message = error(key + " = 1\n");
  EXPECT_EQ(message, "a.toml:1: the key \"" + key.substr(0, 60) +
                         "...\" has 1000000 bytes; the most is 1000");
}

TEST_F(Config, ATableOfManyKeysInAListIsReadInLinearTime) {
  std::string toml = "data.files = [1, {";
  for (int i = 0; i < 60'000; ++i) toml += (i == 0 ? "k" : ",k") + std::to_string(i) + "=1";
  const double began = processor_seconds();
  EXPECT_NE(error(toml + "}]\n").find("takes a list of text"), std::string::npos);
  EXPECT_LT(processor_seconds() - began, 3);
}

TEST_F(Config, NumbersAreFinite) {
  std::vector<double> shares = {1};
  table_.bind("data.shares", &shares, "Shares.").at_least(0);
  for (const char* word : {"nan", "inf", "-inf", "+inf", "-nan"}) {
    const std::string text = word;
    EXPECT_NE(table_.apply_override("train.rate=" + text).message().find("train.rate is "),
              std::string::npos);
    EXPECT_NE(error("[train]\nrate = " + text + "\n").find("it takes finite numbers"),
              std::string::npos);
    EXPECT_NE(error("[train]\ncount = " + text + "\n").find("it takes an integer"),
              std::string::npos);
    EXPECT_NE(error("[data]\nshares = [0.5, " + text + "]\n").find("data.shares has "),
              std::string::npos);
  }
  EXPECT_EQ(error("[train]\nrate = -inf\n"),
            "a.toml:2: train.rate is -inf; it takes finite numbers");
  EXPECT_EQ(error("[data]\nshares = [0.5, -1]\n"), "a.toml:2: data.shares has -1; the least is 0");
  EXPECT_EQ(error("[train]\nmode = nan\n"),
            "a.toml:2: train.mode takes text in quotes, not a number (nan)");
  EXPECT_EQ(fields_.rate, 0.5);
  EXPECT_EQ(fields_.count, 3);
  EXPECT_EQ(shares, std::vector<double>{1});
}

TEST_F(Config, IntegersHaveABoundWhereTheirKeyNamesNone) {
  std::int64_t any = 0, seed = 0;
  bool automatic = false;
  table_.bind("train.any", &any, "Any.");
  table_.bind("train.many", &any, &automatic, "Any.");
  table_.bind("train.seed", &seed, "Seed.").at_most(9.3e18);
  EXPECT_EQ(error("[train]\nany = 2147483647\n"), "ok");
  EXPECT_EQ(any, 2147483647);
  for (const char* key : {"any", "many"})
    EXPECT_NE(
        error(std::string("[train]\n") + key + " = 2147483648\n").find("the most is 2147483647"),
        std::string::npos);
  EXPECT_EQ(error("[train]\nmany = 'auto'\n"), "ok");
  EXPECT_EQ(error("[train]\nseed = 9223372036854775807\n"), "ok");
  EXPECT_EQ(error("[train]\nrate = 4e9\n"), "ok") << "no integer";
}

TEST_F(Config, EveryWordOfAListIsAChoice) {
  EXPECT_TRUE(table_.load_text("[data]\nmeans=['ride','walk']\n", "a.toml").ok());
  EXPECT_EQ(fields_.means, (std::vector<std::string>{"ride", "walk"}));
  EXPECT_TRUE(table_.apply_override("data.means=[]").ok());
  EXPECT_TRUE(fields_.means.empty());
  EXPECT_EQ(error("[data]\nmeans=['walk','fly']\n"),
            "a.toml:2: data.means is [\"walk\",\"fly\"]; it can hold \"walk\", \"ride\"");
  EXPECT_NE(table_.to_markdown().find("- **`means`** (list of `walk`, `ride`;"), std::string::npos);
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

TEST_F(Config, ReferenceNamesTheShorterSideOfACondition) {
  std::int64_t a = 0, b = 0;
  std::string kind = "x";
  table_.bind("only.kind", &kind, "Kind.").one_of({"x", "y", "z"});
  table_.bind("only.most", &a, "A.").only({.key = "only.kind", .values = {"x", "z"}});
  table_.bind("only.one", &b, "B.").only({.key = "only.kind", .values = {"y"}});
  const std::string page = table_.to_markdown();
  EXPECT_NE(page.find("A. Read if `kind` is not `y`."), std::string::npos) << page;
  EXPECT_NE(page.find("B. Read if `kind` is `y`."), std::string::npos) << page;
}

TEST_F(Config, ReferenceNamesRepeatedKeys) {
  std::int64_t values[7] = {};
  std::size_t next = 0;
  for (const char* key : {"one.a", "one.b", "one.c", "two.a", "two.b", "two.c", "two.d"})
    table_.bind(key, &values[next++], std::string("Help of ") + (key + 4) + ".");
  const std::string page = table_.to_markdown();
  EXPECT_NE(page.find("## two\n\n`a`, `b`, `c` are as in `one`.\n\n- **`d`**"), std::string::npos)
      << page;
  EXPECT_NE(page.find("- **`d`** (integer; default `0`): Help of d."), std::string::npos) << page;
  EXPECT_EQ(page.find("Help of a."), page.rfind("Help of a."));
}

TEST_F(Config, ReferenceHasAUsualConditionAboveTheTable) {
  std::int64_t a = 0, b = 0, c = 0, d = 0;
  std::string kind = "x";
  table_.bind("usual.kind", &kind, "Kind.").one_of({"x", "y", "z"});
  const ConfigCondition of_y{.key = "usual.kind", .values = {"y"}};
  table_.bind("usual.a", &a, "A.").only(of_y);
  table_.bind("usual.b", &b, "B.").only(of_y);
  table_.bind("usual.c", &c, "C.").only(of_y).only({.key = "usual.a", .values = {1}});
  table_.bind("usual.d", &d, "D.").only({.key = "usual.kind", .values = {"z"}});
  const std::string page = table_.to_markdown();
  for (const char* text :
       {"Read if `kind` is `y`, unless an entry says otherwise.", "Kind. Always read.",
        "default `0`): A.\n", "C. Only if `a` is `1`.", "D. Read if `kind` is `z`."})
    EXPECT_NE(page.find(text), std::string::npos) << text << "\n" << page;
}

TEST_F(Config, ReferenceListsKeysBelowAFrequentCondition) {
  std::int64_t values[6] = {};
  std::string kind;
  table_.bind("part.kind", &kind, "Kind.").one_of({"", "y"});
  std::size_t next = 0;
  for (const char* key : {"part.a", "part.b", "part.c"})
    table_.bind(key, &values[next++], "Help.").only({.key = "part.kind", .values = {"y"}});
  for (const char* key : {"part.d", "part.e", "part.f"}) table_.bind(key, &values[next++], "Help.");
  const std::string page = table_.to_markdown();
  EXPECT_NE(page.find("## part\n\n- **`kind`** (`\"\"`, `y`): Kind.\n- **`d`**"), std::string::npos)
      << page;
  EXPECT_NE(page.find("- **`f`** (integer; default `0`): Help.\n\nRead if `kind` is `y`:\n\n"
                      "- **`a`** (integer; default `0`): Help.\n- **`b`**"),
            std::string::npos)
      << page;
}

TEST_F(Config, WritesReferenceAndJson) {
  EXPECT_NE(
      table_.to_markdown().find("- **`count`** (integer, ≤ 10, in steps; default `3`): How many."),
      std::string::npos);
  EXPECT_EQ(table_.to_json()["train"]["count"], 3);
}

struct Stop {
  std::string name;
  std::int64_t minutes = 5;
};

class ConfigList : public ::testing::Test {
 protected:
  void SetUp() override { bind(table_); }
  void bind(ConfigTable& table) {
    table.bind("route.title", &title_, "Title.");
    table.bind_list<Stop>(
        "route.stops", &stops_,
        [](ConfigTable& t, Stop& stop) {
          t.bind("name", &stop.name, "Name.");
          t.bind("minutes", &stop.minutes, "How long.").in("minutes").at_least(1);
        },
        "Where to stop.");
    table.bind("route.back", &back_, "Return.");
  }
  std::string error(std::string_view toml) { return table_.load_text(toml, "a.toml").message(); }
  std::string title_;
  std::deque<Stop> stops_;
  bool back_ = false;
  ConfigTable table_;
};

TEST_F(ConfigList, ReadsTablesInTheFilesOrder) {
  ASSERT_EQ(error("[[route.stops]]\nname='a'\n[[route.stops]]\n[[route.stops]]\nminutes=7\n"
                  "name='c'\n[route]\ntitle='x'\n"),
            "ok");
  ASSERT_EQ(stops_.size(), 3u);
  EXPECT_EQ(stops_[0].name, "a");
  EXPECT_EQ(stops_[1].minutes, 5);
  EXPECT_EQ(stops_[2].name, "c");
  EXPECT_EQ(stops_[2].minutes, 7);
  EXPECT_EQ(title_, "x");
  ASSERT_EQ(error("[route]\nstops = [{name='d', minutes=1}, {name='e'}]\n"), "ok");  // replaces
  ASSERT_EQ(stops_.size(), 2u);
  EXPECT_EQ(stops_[1].name, "e");
}

TEST_F(ConfigList, OverridesSetAddAndReplace) {
  ASSERT_EQ(error("[[route.stops]]\nname='a'\n"), "ok");
  ASSERT_TRUE(table_.apply_override("route.stops.0.minutes=9").ok());
  ASSERT_TRUE(table_.apply_override("route.stops.1.name=b").ok());
  ASSERT_EQ(stops_.size(), 2u);
  EXPECT_EQ(stops_[0].minutes, 9);
  EXPECT_EQ(stops_[1].name, "b");
  EXPECT_NE(table_.apply_override("route.stops.3.name=d").message().find("is a list of 2 tables"),
            std::string::npos);
  EXPECT_FALSE(table_.apply_override("route.stops.x.name=d").ok());
  EXPECT_FALSE(table_.apply_override("route.stops=4").ok());
  ASSERT_TRUE(table_.apply_override("route.stops=[{name='z'}]").ok());
  ASSERT_EQ(stops_.size(), 1u);
  EXPECT_EQ(stops_[0].name, "z");
  ASSERT_TRUE(table_.apply_override("route.stops=[]").ok());
  EXPECT_TRUE(stops_.empty());
}

TEST_F(ConfigList, ErrorsNameTheTableAndTheLine) {
  EXPECT_EQ(error("[[route.stops]]\nname='a'\n[[route.stops]]\nminuts=4\n"),
            "a.toml:4: unknown key \"route.stops.1.minuts\"; did you mean "
            "\"route.stops.1.minutes\"?");
  EXPECT_EQ(error("[[route.stops]]\nminutes=0\n"),
            "a.toml:2: route.stops.0.minutes is 0 minutes; the least is 1");
  EXPECT_EQ(error("[[route.stop]]\nname='a'\n"),
            "a.toml:1: unknown key \"route.stop\"; did you mean \"route.stops\"?");
  EXPECT_NE(error("[route.stops]\nname='a'\n").find("written as [[route.stops]]"),
            std::string::npos);
  EXPECT_NE(error("route.stops=[1]\n").find("takes a list of tables"), std::string::npos);
}

TEST_F(ConfigList, ListsHaveALimit) {
  const std::string limit = "route.stops has 1001 tables; the most is 1000";
  std::string tables, values, numbers;
  for (int i = 0; i < 12'000; ++i) {
    tables += "[[route.stops]]\n";
    values += i < 1001 ? "{}," : "";
    numbers += "1,";
  }
  EXPECT_EQ(error(tables), "a.toml:1001: " + limit);
  EXPECT_EQ(error("route.stops = [" + values + "]\n"), "a.toml:1: " + limit);
  const std::string added = table_.apply_override("route.stops=[" + values + "]").message();
  EXPECT_TRUE(added.ends_with("on the command line: " + limit)) << excerpt(added, 200);
  std::vector<double> rates;
  table_.bind("route.rates", &rates, "Rates.");
  EXPECT_EQ(error("[route]\nrates = [" + numbers + "]\n"),
            "a.toml:2: route.rates has 12000 values; the most is 10000");
  // What is wrong with a long one is told briefly.
  EXPECT_LT(error("[route]\ntitle = [" + numbers.substr(0, 8000) + "]\n").size(), 300U);
}

TEST_F(ConfigList, WhatIsWrittenIsReadAgain) {
  ASSERT_EQ(error("[[route.stops]]\nname='a'\n[[route.stops]]\nminutes=6\n"), "ok");
  EXPECT_EQ(table_.to_json().dump(),
            R"({"route":{"title":"","back":false,"stops":[{"name":"a","minutes":5},)"
            R"({"name":"","minutes":6}]}})");
  ConfigTable again;  // over fields that are filled, as a job's copy is
  bind(again);
  EXPECT_EQ(again.to_json(), table_.to_json());
  ASSERT_TRUE(again.apply_override("route.stops.1.minutes=8").ok());
  EXPECT_EQ(
      config_differences(table_.to_json(), Json::parse(R"({"route":{"stops":[{"name":"b"}]}})"))
          .size(),
      1u);
  const Json before = Json::parse(R"({"route":{"stops":[{"minutes":5},{"minutes":6}]}})");
  EXPECT_EQ(config_differences(before, again.to_json()),
            (std::vector<std::string>{"route.stops.1.minutes: was 6, is 8"}));
}

TEST_F(ConfigList, ReferenceHasASectionOfItsOwn) {
  const std::string page = table_.to_markdown();
  const auto list = page.find("## [[route.stops]]\n\nWhere to stop.\n\n- **`");
  ASSERT_NE(list, std::string::npos) << page;
  EXPECT_NE(page.find("- **`minutes`** (integer, in minutes; default `5`): How long.", list),
            std::string::npos);
  // The section's keys behind the list are in the section's one list.
  EXPECT_EQ(page.find("## route\n"), page.rfind("## route\n"));
  EXPECT_LT(page.find("- **`back`**"), list);
  EXPECT_EQ(table_.find("route.stops.0.minutes")->type, "integer");
  EXPECT_EQ(table_.find("route.stops.0"), nullptr);
}

}  // namespace
}  // namespace neap

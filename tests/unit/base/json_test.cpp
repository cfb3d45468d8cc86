#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace neap {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string failure(std::string_view text) {
  return parse_json(text, "a.json").status().message();
}

TEST(Json, FailuresPrintNoRawBytes) {
  const std::string message = failure("{\"a\": \"caf\xE9 \xC3\xA9\"}");
  EXPECT_THAT(message,
              AllOf(HasSubstr("a.json: not valid JSON: parse error"), HasSubstr("caf\\xe9")));
  EXPECT_THAT(message, Not(HasSubstr("\xE9")));
}

TEST(Json, ANumberThatIsTooLargeIsToldPlainly) {
  EXPECT_EQ(failure("{\"a\": -1e999}"), "a.json: not valid JSON: number overflow parsing '-1e999'");
}

TEST(Json, FailuresAreShort) {
  const std::string message = failure("{\"a\": \"" + std::string(100000, 'x') + "the end\xFF");
  EXPECT_LT(message.size(), 400U);
  EXPECT_THAT(message, AllOf(HasSubstr("parse error at line 1"), HasSubstr("the end\\xff")));
}

TEST(Json, Utf16IsNamed) {
  for (const std::string_view text :
       {std::string_view("\xFF\xFE{\0}\0", 6), std::string_view("\xFE\xFF\0{\0}", 6)})
    EXPECT_THAT(failure(text), AllOf(HasSubstr("a.json: the file is UTF-16"), HasSubstr("iconv")));
  EXPECT_TRUE(parse_json("\xEF\xBB\xBF{}", "a.json").ok());
}

TEST(Json, TextsOfOtherBytesAreWritten) {
  const Json value = {{"caf\xE9",
                       {"a\xFF"
                        "b",
                        "\xC3\xA9", 1}}};
  EXPECT_EQ(json_text(value),
            "{\"caf\xEF\xBF\xBD\":[\"a\xEF\xBF\xBD"
            "b\",\"\xC3\xA9\",1]}");
  EXPECT_TRUE(parse_json(json_text(value, 2), "a.json").ok());
  EXPECT_EQ(json_text({{"a", 1}}, 1), "{\n \"a\": 1\n}");
}

TEST(Json, OfMembersWithOneNameTheLastCounts) {
  for (const int others : {0, 14, 15, 16, 17, 40}) {
    Json want = Json::object();
    std::string text = "{\"a\":1";
    want["a"] = Json::parse("[{\"b\":[]},-2,0.5,null,true,\"\"]");
    for (int i = 0; i < others; ++i) {
      const std::string name = "n" + std::to_string(i);
      text += ",\"" + name + "\":{\"a\":" + std::to_string(i) + "}";
      want[name]["a"] = i;
    }
    text += ",\"n0\":[],\"a\":[{\"b\":[]},-2,0.5,null,true,\"\"]}";
    want["n0"] = Json::array();
    const auto read = parse_json(text, "a.json");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->dump(), want.dump());
  }
}

TEST(Json, AnObjectOfManyMembersIsReadInTheTimeOfItsText) {
  // 4 MB; comparing names with each other would take minutes.
  constexpr int kMembers = 300'000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) text += "\"name" + std::to_string(i) + "\":0,";
  text.back() = '}';
  const auto read = parse_json(text, "a.json");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), static_cast<std::size_t>(kMembers));
}

TEST(Json, ValuesOverTheirMemoryAreRefusedBeforeTheyAreMade) {
  ReadLimits limits = read_limits::kJson;
  limits.memory.fixed = 1000;
  const auto list_of = [](std::string_view item) {
    std::string text = "[";
    for (int i = 0; i < 1000; ++i) (text += item) += ',';
    text.back() = ']';
    return text;
  };
  for (const char* const item :
       {"7", "12.5", "true", "\"sentences of words\"", "{\"name\":12}", "\"[[[\""})
    EXPECT_TRUE(parse_json(list_of(item), "a.json", limits).ok()) << item;
  for (const char* const item : {"[]", "{}", "\"\"", "[[]]"})
    EXPECT_THAT(parse_json(list_of(item), "a.json", limits).status().message(),
                HasSubstr("a.json needs memory over the limit of "))
        << item;
}

TEST(Printable, IsOneLineOfUtf8) {
  EXPECT_EQ(printable("a\n\t\x1B\x7F"), "a\\n\\t\\x1b\\x7f");
  EXPECT_EQ(printable("\xC3\xA9 \xC3 \xE2\x82 \xFF"), "\xC3\xA9 \\xc3 \\xe2\\x82 \\xff");
}

}  // namespace
}  // namespace neap

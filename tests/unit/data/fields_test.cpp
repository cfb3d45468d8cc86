#include "data/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace neap::data {
namespace {

using ::testing::HasSubstr;

TEST(Fields, AreTextsOrConversationsAndErrorsNameTheirPlace) {
  const Json row =
      parse_row(R"({"a": "x", "b": [{"role": "user", "content": "hello"}], "c": null})", "f:1")
          .value();
  const Json messages = {{{"role", "user"}, {"content", "hello"}}};
  EXPECT_EQ(text_field(row, "a", "f:1").value(), "x");
  EXPECT_EQ(text_field(row, "b", "f:1").value(), messages);
  EXPECT_EQ(optional_text_field(row, "c", "f:1").value(), nullptr);
  EXPECT_THAT(text_field(row, "q", "f:1", "data.prompt_key").status().message(),
              HasSubstr("Set data.prompt_key to the field to read"));
  EXPECT_EQ(optional_text_field(row, "d", "f:1").value(), nullptr);
  const auto failure = [](const std::string& text) {
    const Result<Json> made = parse_row(text, "bad.jsonl:2");
    return made.ok() ? text_field(*made, "a", "bad.jsonl:2").status().message()
                     : made.status().message();
  };
  EXPECT_THAT(failure("{\"a\": "), HasSubstr("bad.jsonl:2: not valid JSON"));
  EXPECT_THAT(failure("{\"b\":\"x\"}"), HasSubstr("bad.jsonl:2: field \"a\" is missing"));
  EXPECT_THAT(failure("{\"a\":1}"), HasSubstr("field \"a\" is number"));
  EXPECT_THAT(failure("{\"a\":null}"), HasSubstr("field \"a\" is null"));
  EXPECT_THAT(failure("{\"a\":[{\"content\":\"x\"}]}"), HasSubstr("a text \"role\""));
  EXPECT_THAT(failure("[1]"), HasSubstr("one JSON object"));
  EXPECT_THAT(optional_text_field({{"d", 3}}, "d", "f:9").status().message(), HasSubstr("f:9"));
}

TEST(Fields, ToolsAreAListOfSchemasOrThatListAsText) {
  const Json tools = {{{"name", "f"}}, {{"name", "g"}}};
  const Json messages = {{{"role", "user"}, {"content", "hello"}}};
  const auto read = [&](const Json& value) {
    return tools_field({{"tools", value}}, messages, "f:3");
  };
  EXPECT_EQ(read(tools).value(), tools);
  EXPECT_EQ(read(tools.dump()).value(), tools);
  EXPECT_EQ(read(Json::array()).value(), Json::array());  // as transformers gives it to a template
  EXPECT_EQ(read(nullptr).value(), nullptr);
  EXPECT_EQ(tools_field({{"a", 1}}, messages, "f:3").value(), nullptr);
  EXPECT_EQ(tools_field({{"tools", 3}}, "a text", "f:3").value(), nullptr);
  for (const Json& wrong :
       {Json(3), Json("x"), Json::array({"f"}), tools[0], Json(tools[0].dump())})
    EXPECT_THAT(read(wrong).status().message(), HasSubstr("f:3: field \"tools\"")) << wrong;
}

}  // namespace
}  // namespace neap::data

#include "chat/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace neap::chat {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<Rendered> rendered(std::string_view source, const Json& messages = Json::array()) {
  const Result<Template> made = Template::parse(source, "chat_template");
  if (!made.ok()) return made.status();
  return made->render(messages, {});
}
std::string text(std::string_view source) {
  const auto made = rendered(source);
  return made.ok() ? made->text : "FAILED: " + made.status().message();
}
std::string failure(std::string_view source) {
  const auto made = rendered(source);
  return made.ok() ? "rendered: " + made->text : made.status().message();
}

TEST(ChatTemplate, ErrorsNameTheTemplateAndTheLine) {
  EXPECT_EQ(failure("a\n{{ missing.x }}"), "chat_template line 2: 'missing' is undefined");
  EXPECT_EQ(failure("\n\n{% for m in [1] %}\n{{ 'a' + m }}{% endfor %}"),
            "chat_template line 4: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(failure("a\r\n\r\n{{ raise_exception('No turns.') }}"),
            "chat_template line 3: No turns.");
  EXPECT_EQ(failure("{% if x %}\n\nb"),
            "chat_template line 3: expected {% endif %}, got the end of the template");
  EXPECT_EQ(failure("\n{% frob %}"), "chat_template line 2: Encountered unknown tag 'frob'");
  EXPECT_THAT(failure("{{ {'a': 1}.update({}) }}"),
              HasSubstr("line 1: a dict of a template cannot be changed"));
  EXPECT_THAT(failure("{{ 'a' | frob }}"), HasSubstr("No filter named 'frob'"));
  EXPECT_THAT(failure("{{ 'a\n\n }}"), HasSubstr("A string does not end"));
  EXPECT_THAT(failure("{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ m() }}"),
              StartsWith("chat_template line 2:"));
}

TEST(ChatTemplate, WorkIsBounded) {
  const std::string tens =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(failure(tens), HasSubstr("too much work"));
  EXPECT_THAT(failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("nest too deep"));
  EXPECT_THAT(failure("{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = "
                      "n.x + n.x %}{% endfor %}"),
              HasSubstr("too long"));
  EXPECT_THAT(failure("{{ 'a' * 10000000000 }}"), HasSubstr("too long"));
  EXPECT_THAT(failure("{{ [0] * 10000000000 }}"), HasSubstr("too long"));
  EXPECT_THAT(failure("{{ ('a' * 100000).replace('a', 'b' * 100000) | length }}"),
              HasSubstr("too long"));
  EXPECT_THAT(failure("{{ range(100001) | length }}"), HasSubstr("Range too big"));
  EXPECT_THAT(failure("{{ 9 ** 1000000000 }}"), HasSubstr("too large"));
  // Values that share their parts have texts that double with every level.
  const std::string shared =
      "{% set n = namespace(x=['a']) %}{% for i in range(64) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}";
  EXPECT_THAT(failure(shared + "{{ n.x }}"),
              AllOf(HasSubstr("line 1"), ::testing::Not(HasSubstr("rendered"))));
  EXPECT_THAT(failure(shared + "{{ n.x | tojson | length }}"),
              ::testing::Not(HasSubstr("rendered")));
  EXPECT_THAT(failure("{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] "
                      "%}{% endfor %}"),
              HasSubstr("nests deeper"));
}

TEST(ChatTemplate, NestingIsBounded) {
  for (const std::string open :
       {"(", "[", "-", "not ", "{% if 1 %}", "{% for x in y %}", "a[", "a if b else ", "{'a':"}) {
    std::string source = open.starts_with("{%") ? "" : "{{ ";
    for (int i = 0; i < 200'000; ++i) source += open;
    EXPECT_THAT(failure(source), HasSubstr("chat_template line 1")) << open;
  }
  for (const std::string link :
       {" + 1", " and 1", " if 1", ".a", "[0]", " | trim", " is true", "()"}) {
    std::string wide = "{{ 1";
    for (int i = 0; i < 200'000; ++i) wide += link;
    EXPECT_THAT(failure(wide + " }}"), HasSubstr("chat_template line 1")) << link;
  }
}

TEST(ChatTemplate, ObjectsThatHoldThemselvesAreFreed) {
  EXPECT_EQ(text("{% set n = namespace() %}{% set n.self = n %}{% set n.list = [n] %}"
                 "{% macro m() %}{{ m is callable }}{% endmacro %}{% set n.m = m %}{{ n.m() }}"),
            "True");
}

TEST(ChatTemplate, StrftimeTellsTheTimeOfNow) {
  EXPECT_THAT(text("{{ strftime_now('%Y') }}"), ::testing::MatchesRegex("20[0-9][0-9]"));
}

TEST(ChatTemplate, ThoughtsAreThereByTheirOtherNames) {
  const Json messages = {{{"role", "assistant"}, {"content", "a"}, {"reasoning", "hm"}}};
  const auto made =
      rendered("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", messages);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->text, "hmhm");
}

TEST(ChatTemplate, ConversationsMustBeListsOfObjects) {
  EXPECT_FALSE(rendered("x", Json("text")).ok());
  EXPECT_FALSE(rendered("x", Json::array({"text"})).ok());
}

TEST(ChatTemplate, ThreadsRenderTheSame) {
  const Result<Template> made =
      Template::parse("{% for i in range(50) %}{{ i * 2 }},{% endfor %}", "t");
  ASSERT_TRUE(made.ok());
  const std::string expected = made->render(Json::array(), {})->text;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) wrong += made->render(Json::array(), {})->text != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace neap::chat

#include "text/chat/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "conformance/sanitizer.h"

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
  EXPECT_THAT(failure(tens), HasSubstr("takes over the limit of 20000000 steps"));
  EXPECT_THAT(failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("a call or a block nests over the limit of 600 levels"));
  EXPECT_THAT(failure("{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = "
                      "n.x + n.x %}{% endfor %}"),
              HasSubstr("over the limit of 64 MiB"));
  EXPECT_THAT(failure("{{ 'a' * 10000000000 }}"), HasSubstr("over the limit of 64 MiB"));
  EXPECT_THAT(failure("{{ [0] * 10000000000 }}"), HasSubstr("over the limit of 64 MiB"));
  EXPECT_THAT(failure("{{ ('a' * 100000).replace('a', 'b' * 100000) | length }}"),
              HasSubstr("needs memory over the limit of 256 MiB"));
  EXPECT_THAT(
      failure("{% set n = namespace(x=[0]) %}{% for i in range(40) %}{% set n.x = n.x + n.x "
              "%}{% endfor %}"),
      HasSubstr("needs memory over the limit of 256 MiB"));
  EXPECT_EQ(failure("{{ '' * 1000000000000000000 }}{{ [] * 1000000000000000000 }}"),
            "rendered: []");
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
              HasSubstr("nests "));
}

// Of the process, at its largest so far.
std::int64_t peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

TEST(ChatTemplate, TextsAreShared) {
  const std::string mib(std::size_t{1} << 20, 'a');
  const Json messages = {{{"role", "user"}, {"content", mib}}};
  const std::string s = "{% set s = messages[0].content %}";
  const auto before = peak_mib();
  const auto shared = [&](const std::string& source) {
    const auto made = rendered(s + source, messages);
    return made.ok() ? made->text : made.status().message();
  };
  EXPECT_EQ(shared("{{ ([s] * 1000) | length }}"), "1000");
  EXPECT_EQ(shared("{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = n.x + [s] "
                   "%}{% endfor %}{{ n.x | length }}"),
            "1000");
  EXPECT_EQ(shared("{{ s[1:4] }}{{ s[-2:] }}{{ s[5] }}{{ s[::-1][:2] }}{{ s | first }}"),
            "aaaaaaaaa");
  EXPECT_EQ(shared("{{ s.split('b') | length }}{{ s.strip()[0] }}"), "1a");
  EXPECT_LT(peak_mib() - before, 100);
}

TEST(ChatTemplate, MemoryIsBounded) {
  const std::string mib(std::size_t{1} << 20, 'a');
  const Json messages = {{{"role", "user"}, {"content", mib}}};
  const std::string s = "{% set s = messages[0].content %}";
  const char* const grows =
      "{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
      "{% set n.x = n.x + [s.strip] * 99 %}{% endfor %}";
  const auto before = peak_mib();
  for (const std::string source :
       {"{{ {'a': [s] * 1000} }}", "{{ [s] * 1000 | tojson }}", "{{ (s * 60)[::2] * 60 }}",
        "{{ (s * 63) | list | length }}", "{{ ([s] * 1000) | join }}", "{{ s | replace('a', s) }}",
        "{{ strftime_now(s) }}", grows}) {
    const auto made = rendered(s + source, messages);
    EXPECT_FALSE(made.ok()) << source;
    if (made.ok()) continue;
    EXPECT_THAT(made.status().message(), StartsWith("chat_template line 1: ")) << source;
    EXPECT_LT(made.status().message().size(), 200U) << source;
  }
  if (!kInstrumented) {  // a sanitizer keeps what was freed
    EXPECT_LT(peak_mib() - before, 400);
  }
}

TEST(ChatTemplate, WorkOnLongTextsIsCounted) {
  const Json messages = {{{"role", "user"}, {"content", std::string(1 << 20, 'a')}}};
  const std::string s = "{% set s = messages[0].content %}";
  for (const std::string source :
       {"{% for i in range(100000) %}{% set x = s.find(s[:500000] + 'b') %}{% endfor %}",
        "{% for i in range(100000) %}{% set x = s.strip(s[1:] + 'b') %}{% endfor %}"}) {
    const auto made = rendered(s + source, messages);
    EXPECT_FALSE(made.ok()) << source;
    EXPECT_THAT(made.status().message(), HasSubstr("takes over the limit of 20000000 steps"))
        << source;
  }
}

TEST(ChatTemplate, LongTemplatesAreRefused) {
  EXPECT_EQ(text(std::string(1 << 20, 'a')).size(), 1U << 20);
  EXPECT_THAT(failure(std::string((1 << 20) + 1, 'a')),
              HasSubstr("over the limit of 1 MiB for a chat template"));
}

TEST(ChatTemplate, NestingIsBounded) {
  for (const std::string open :
       {"(", "[", "-", "not ", "{% if 1 %}", "{% for x in y %}", "a[", "a if b else ", "{'a':"}) {
    std::string source = open.starts_with("{%") ? "" : "{{ ";
    for (int i = 0; i < 50'000; ++i) source += open;
    EXPECT_THAT(failure(source), HasSubstr("chat_template line 1")) << open;
  }
  for (const std::string link :
       {" + 1", " and 1", " if 1", ".a", "[0]", " | trim", " is true", "()"}) {
    std::string wide = "{{ 1";
    for (int i = 0; i < 90'000; ++i) wide += link;
    EXPECT_THAT(failure(wide + " }}"), HasSubstr("chat_template line 1")) << link;
  }
}

TEST(ChatTemplate, ObjectsThatHoldThemselvesAreFreed) {
  EXPECT_EQ(text("{% set n = namespace() %}{% set n.self = n %}{% set n.list = [n] %}"
                 "{% macro m() %}{{ m is callable }}{% endmacro %}{% set n.m = m %}{{ n.m() }}"),
            "True");
  // A loop may hold an earlier one, and the block around it.
  const std::string begin = "{% set n = namespace(l=0) %}";
  EXPECT_THAT(failure(begin + "{% for i in range(99999) %}{% for x in [n.l] %}{% set n.l = loop %}"
                              "{% endfor %}{% endfor %}"),
              HasSubstr("nests "));
  EXPECT_EQ(text(begin + "{% macro m(l) %}{% for x in [1] recursive %}{% set n.l = loop %}"
                         "{% endfor %}{% endmacro %}{% for i in range(99999) %}{% set x = m(n.l) %}"
                         "{% endfor %}"),
            "");
  EXPECT_EQ(text("{% for x in [1, 1] %}{{ loop.changed(loop.changed) }} {% endfor %}"),
            "True True ");
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
  threads.reserve(4);
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

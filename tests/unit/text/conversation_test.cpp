#include "text/chat/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/text/byte_tokenizer.h"

namespace neap::chat {
namespace {

using ::testing::HasSubstr;

constexpr const char* kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr const char* kMarked =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}"
    "<|im_end|>\n{% endif %}{% endfor %}";

std::string tokenizer_json() {
  return text::byte_tokenizer_json(
      {"<|im_start|>", "<|im_end|>", "<s>"},
      {" one", " two", "three", "four", "user", "assistant", " assistant"});
}
text::Tokenizer tokenizer() {
  return text::Tokenizer::from_json(tokenizer_json(), "the tests' tokenizer");
}

Json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}
const Json& conversation() {
  static const Json kMade = {message("system", "é one"), message("user", "two"),
                             message("assistant", "three"), message("user", "four"),
                             message("assistant", "日 one two")};
  return kMade;
}

Conversations with(const char* source) {
  auto made = Conversations::make(tokenizer(), source, "t");
  EXPECT_TRUE(made.ok());
  return std::move(*made);
}

std::vector<std::string> marked(const Conversations& conversations) {
  const auto made = conversations.trained_text(conversation(), {});
  EXPECT_TRUE(made.ok());
  std::vector<std::string> parts;
  for (const auto& r : made->ranges) parts.push_back(made->text.substr(r.begin, r.end - r.begin));
  return parts;
}

TEST(Conversations, PromptsEndWithTheHeadOfTheNextTurn) {
  const Json messages = {message("user", "two")};
  const auto chat = with(kChatml);
  EXPECT_EQ(*chat.prompt_text(messages, {}),
            "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n");
  const auto ids = *chat.prompt(messages, {});
  EXPECT_EQ(ids, tokenizer().encode(*chat.prompt_text(messages, {})));
  EXPECT_EQ(ids.front(), 0);
}

// As Qwen 2.5 writes them: in a system message that is made for them.
TEST(Conversations, ToolsAreThereInPromptsAndInTrainingTexts) {
  const auto chat = with(
      "{%- if tools %}<|im_start|>system\n# Tools\n<tools>"
      "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}"
      "{{- '\\n</tools><|im_end|>' }}"
      "{%- endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
      "{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const Json tools = Json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const std::string head =
      "<|im_start|>system\n# Tools\n<tools>\n"
      R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})"
      "\n</tools><|im_end|>";
  const std::string said = "<|im_start|>user\ntwo<|im_end|>";
  EXPECT_EQ(*chat.prompt_text(Json::array({message("user", "two")}), tools),
            head + said + "<|im_start|>assistant\n");
  EXPECT_EQ(*chat.prompt_text(Json::array({message("user", "two")}), {}),
            said + "<|im_start|>assistant\n");
  const auto made = chat.trained_text(
      Json::array({message("user", "two"), message("assistant", "three")}), tools);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->text, head + said + "<|im_start|>assistant\nthree<|im_end|>");
  ASSERT_EQ(made->ranges.size(), 1U);
  EXPECT_EQ(made->text.substr(made->ranges[0].begin), "three<|im_end|>");
}

TEST(Conversations, TheAssistantsTurnsAreMarkedByBlocksAndByDifferenceAlike) {
  const std::vector<std::string> expected = {"three<|im_end|>\n", "日 one two<|im_end|>\n"};
  EXPECT_EQ(marked(with(kMarked)), expected);
  EXPECT_EQ(marked(with(kChatml)), expected);
}

TEST(Conversations, TrainedIdsAreThoseOfTheMarkedText) {
  for (const char* source : {kChatml, kMarked}) {
    const auto chat = with(source);
    const auto made = chat.trained(conversation(), {});
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->ids, tokenizer().encode(chat.trained_text(conversation(), {})->text));
    std::vector<text::TokenId> trained;
    for (std::size_t i = 0; i < made->ids.size(); ++i) {
      if (made->trained[i]) trained.push_back(made->ids[i]);
    }
    EXPECT_EQ(tokenizer().decode(trained, false), "three<|im_end|>\n日 one two<|im_end|>\n");
  }
}

TEST(Conversations, ATokenOverTheBorderIsTrainedOn) {
  // "two" and "assistant" are one token each; the marks begin and end inside of them.
  const auto chat =
      with("{% for m in messages %} tw{% generation %}o assist{% endgeneration %}ant{% endfor %}");
  const auto made = chat.trained(Json::array({message("user", "")}), {});
  ASSERT_TRUE(made.ok());
  const auto whole = tokenizer().encode(" two assistant");
  ASSERT_EQ(made->ids, whole);
  EXPECT_TRUE(made->trained.front());
  EXPECT_TRUE(made->trained.back());
}

TEST(Conversations, TemplatesThatRewriteTurnsNeedBlocks) {
  const auto chat = with(
      "{% for m in messages %}{{ m.role }}:{{ m.content if loop.last else m.content | upper }};"
      "{% endfor %}");
  const auto made = chat.trained(conversation(), {});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().message(), HasSubstr("message 3 in another way"));
}

TEST(Conversations, ATextThatTheTokenizerRefusesIsAFailureAndNoException) {
  Json file = Json::parse(tokenizer_json());
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(a|aa)+\\d"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const auto made = Conversations::make(text::Tokenizer::from_json(file.dump(), "t"), kMarked, "t");
  ASSERT_TRUE(made.ok());
  const std::string text(200, 'a');  // the pattern backtracks without end
  const Json messages = {message("user", "two"), message("assistant", text.c_str())};
  EXPECT_THAT(made->prompt(messages, {}).status().message(), HasSubstr("(a|aa)+\\d"));
  EXPECT_THAT(made->trained(messages, {}).status().message(), HasSubstr("(a|aa)+\\d"));
}

TEST(Conversations, WhatCannotBeTrainedOnIsRefused) {
  EXPECT_THAT(with(kChatml).trained(Json::array({message("user", "a")}), {}).status().message(),
              HasSubstr("no turn"));
  EXPECT_THAT(Conversations::make(tokenizer()).status().message(), HasSubstr("no chat template"));
  EXPECT_THAT(Conversations::make(tokenizer(), "{% if", "t").status().message(),
              HasSubstr("t line 1"));
  EXPECT_THAT(with("{{ raise_exception('no') }}").prompt(conversation(), {}).status().message(),
              HasSubstr("no"));
}

TEST(Conversations, TheTemplateKnowsTheTokenizersRoles) {
  text::Tokenizer t = tokenizer();
  t.set_roles("<s>", "<|im_end|>", std::nullopt);
  const auto chat =
      Conversations::make(t, "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}", "t");
  EXPECT_EQ(*chat->prompt_text(Json::array(), {}), "<s><|im_end|>False");
}

}  // namespace
}  // namespace neap::chat

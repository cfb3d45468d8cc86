#include "text/chat/conversation.h"

#include <algorithm>

#include "base/format.h"

namespace neap::chat {
namespace {

std::size_t common_length(std::string_view a, std::string_view b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto n = static_cast<std::size_t>(ends.first - a.begin());
  while (n > 0 && n < b.size() && (static_cast<unsigned char>(b[n]) & 0xc0) == 0x80) --n;
  return n;
}

bool is_assistant(const Json& message) {
  return message.is_object() && message.value("role", Json()) == "assistant";
}

// The tokenizer throws; this module returns Status.
Result<std::vector<text::TokenId>> encode(const text::Tokenizer& tokenizer, std::string_view text) {
  try {
    return tokenizer.encode(text);
  } catch (const Error& error) {
    return error.status();
  }
}

}  // namespace

Conversations::Conversations(const text::Tokenizer& tokenizer, Template made)
    : tokenizer_(tokenizer), template_(std::move(made)), tokens_(Json::object()) {
  const auto add = [&](const char* name, const std::optional<text::TokenId>& id) {
    if (id) tokens_[name] = tokenizer_.token_of(*id);
  };
  add("bos_token", tokenizer_.bos());
  add("eos_token", tokenizer_.eos());
  add("pad_token", tokenizer_.pad());
}

Result<Conversations> Conversations::make(const text::Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty())
    return Status(ErrorCode::kNotFound, "The tokenizer has no chat template");
  return make(tokenizer, tokenizer.chat_template(), "chat template");
}

Result<Conversations> Conversations::make(const text::Tokenizer& tokenizer, std::string_view source,
                                          std::string_view where) {
  Result<Template> made = Template::parse(source, where);
  if (!made.ok()) return made.status();
  return Conversations(tokenizer, std::move(*made));
}

Result<Rendered> Conversations::render(const Json& messages, const Json& tools,
                                       bool with_head) const {
  RenderOptions options;
  options.tools = tools;
  options.add_generation_prompt = with_head;
  options.variables = tokens_;
  return template_.render(messages, options);
}

Result<std::string> Conversations::prompt_text(const Json& messages, const Json& tools) const {
  Result<Rendered> made = render(messages, tools, true);
  if (!made.ok()) return made.status();
  return std::move(made->text);
}

Result<std::vector<text::TokenId>> Conversations::prompt(const Json& messages,
                                                         const Json& tools) const {
  const Result<std::string> text = prompt_text(messages, tools);
  if (!text.ok()) return text.status();
  return encode(tokenizer_, *text);
}

Result<std::vector<text::TokenId>> Conversations::whole(const Json& messages,
                                                        const Json& tools) const {
  const Result<Rendered> made = render(messages, tools, false);
  if (!made.ok()) return made.status();
  return encode(tokenizer_, made->text);
}

Result<std::vector<Rendered::Range>> Conversations::by_difference(const Json& messages,
                                                                  const Json& tools,
                                                                  const std::string& text) const {
  std::vector<Rendered::Range> ranges;
  Json before = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (is_assistant(messages[i])) {
      const Result<Rendered> head = render(before, tools, true);
      if (!head.ok()) return head.status();
      before.push_back(messages[i]);
      const Result<Rendered> turn = render(before, tools, false);
      if (!turn.ok()) return turn.status();
      if (!text.starts_with(turn->text))
        return Status(ErrorCode::kUnsupported,
                      format("The chat template writes message {} in another way when more "
                             "messages follow; it needs {{% generation %}} blocks to show what the "
                             "assistant wrote",
                             i + 1));
      ranges.push_back({common_length(head->text, turn->text), turn->text.size()});
    } else {
      before.push_back(messages[i]);
    }
  }
  return ranges;
}

Result<TrainedText> Conversations::trained_text(const Json& messages, const Json& tools) const {
  Result<Rendered> made = render(messages, tools, false);
  if (!made.ok()) return made.status();
  if (!made->generated.empty())
    return TrainedText{std::move(made->text), std::move(made->generated)};
  if (!std::any_of(messages.begin(), messages.end(), is_assistant))
    return Status(ErrorCode::kInvalidArgument, "The conversation has no turn of the assistant");
  Result<std::vector<Rendered::Range>> ranges = by_difference(messages, tools, made->text);
  if (!ranges.ok()) return ranges.status();
  return TrainedText{std::move(made->text), std::move(*ranges)};
}

Result<TrainedIds> Conversations::trained(const Json& messages, const Json& tools) const {
  const Result<TrainedText> made = trained_text(messages, tools);
  if (!made.ok()) return made.status();
  const std::string_view text = made->text;
  TrainedIds out;
  NEAP_TRY_ASSIGN(out.ids, encode(tokenizer_, text));
  out.trained.resize(out.ids.size());
  // Counts the ids that the text up to `end` has in common with the whole text. The next id
  // contains what follows `end`. If a token spans the border, it also contains text before `end`.
  const auto ids_before = [&](std::size_t end, bool& spans) -> Result<std::size_t> {
    NEAP_TRY_ASSIGN(const std::vector<text::TokenId> part, encode(tokenizer_, text.substr(0, end)));
    const auto common = std::mismatch(part.begin(), part.end(), out.ids.begin(), out.ids.end());
    spans = common.first != part.end();
    return static_cast<std::size_t>(common.first - part.begin());
  };
  for (const Rendered::Range& range : made->ranges) {
    if (range.begin == range.end) continue;
    bool spans = false;
    NEAP_TRY_ASSIGN(const std::size_t first, ids_before(range.begin, spans));
    NEAP_TRY_ASSIGN(std::size_t last, ids_before(range.end, spans));
    if (spans) ++last;
    for (std::size_t i = first; i < std::min(last, out.ids.size()); ++i) out.trained[i] = true;
  }
  return out;
}

}  // namespace neap::chat

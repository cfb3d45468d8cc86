// Tokenizes conversations with a tokenizer and its chat template.
//
// Threads   const calls from any thread.
//
// Failure   Status naming the template and the line, or the message.
//
// Cost      one rendering per prompt. For a training text without {% generation %}, two more per
//           assistant turn.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/chat/template.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::chat {

/// A text and the byte ranges that the assistant wrote.
struct TrainedText {
  std::string text;
  std::vector<Rendered::Range> ranges;
};
struct TrainedIds {
  std::vector<text::TokenId> ids;
  std::vector<bool> trained;  ///< for each id, whether the assistant wrote it
};

class Conversations {
 public:
  /// Uses the tokenizer's own template. Fails if it has none or the template is broken.
  [[nodiscard]] static Result<Conversations> make(const text::Tokenizer& tokenizer);
  [[nodiscard]] static Result<Conversations> make(const text::Tokenizer& tokenizer,
                                                  std::string_view source, std::string_view where);

  /// The text that the model continues, up to the head of its turn. `tools` here and below: JSON
  /// schemas of functions that the model may call, for the template; null: none.
  [[nodiscard]] Result<std::string> prompt_text(const Json& messages, const Json& tools) const;
  /// The ids of prompt_text(). The template writes BOS itself if it needs one.
  [[nodiscard]] Result<std::vector<text::TokenId>> prompt(const Json& messages,
                                                          const Json& tools) const;
  /// The ids of a complete conversation.
  [[nodiscard]] Result<std::vector<text::TokenId>> whole(const Json& messages,
                                                         const Json& tools) const;
  /// The whole conversation with the assistant's turns marked. {% generation %} blocks of the
  /// template mark them. Without such blocks, a turn is the text that it adds to the conversation
  /// before it and its head.
  [[nodiscard]] Result<TrainedText> trained_text(const Json& messages, const Json& tools) const;
  [[nodiscard]] Result<TrainedIds> trained(const Json& messages, const Json& tools) const;

 private:
  Conversations(const text::Tokenizer& tokenizer, Template made);
  [[nodiscard]] Result<Rendered> render(const Json& messages, const Json& tools,
                                        bool with_head) const;
  [[nodiscard]] Result<std::vector<Rendered::Range>> by_difference(const Json& messages,
                                                                   const Json& tools,
                                                                   const std::string& text) const;
  text::Tokenizer tokenizer_;
  Template template_;
  Json tokens_;  // bos_token and similar variables
};

}  // namespace neap::chat

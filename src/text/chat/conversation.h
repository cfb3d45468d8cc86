// Conversations as tokens: a tokenizer and its chat template together.
//
// Threads   const calls from any thread.
// Failure   Status naming the template and the line, or the message.
// Cost      a rendering for a prompt; without {% generation %} two more for each of the assistant's
//           turns of a training text.
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

/// What of a text the assistant wrote, in bytes.
struct TrainedText {
  std::string text;
  std::vector<Rendered::Range> ranges;
};
struct TrainedIds {
  std::vector<text::TokenId> ids;
  std::vector<bool> trained;  ///< of each id: whether the assistant wrote it
};

class Conversations {
 public:
  /// With the tokenizer's own template. Fails if it has none or the template is broken.
  [[nodiscard]] static Result<Conversations> make(const text::Tokenizer& tokenizer);
  [[nodiscard]] static Result<Conversations> make(const text::Tokenizer& tokenizer,
                                                  std::string_view source, std::string_view where);

  /// The text that the model continues, up to the head of its turn. `tools` here and below: JSON
  /// schemas of what the model may call, for the template; null: none.
  [[nodiscard]] Result<std::string> prompt_text(const Json& messages, const Json& tools) const;
  /// Its ids. The template writes BOS where it wants one.
  [[nodiscard]] Result<std::vector<text::TokenId>> prompt(const Json& messages,
                                                          const Json& tools) const;
  /// The ids of a conversation that is complete.
  [[nodiscard]] Result<std::vector<text::TokenId>> whole(const Json& messages,
                                                         const Json& tools) const;
  /// The whole conversation, with the assistant's turns marked: by the template's {% generation %}
  /// blocks, else by what each turn adds to the conversation before it and its head.
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
  Json tokens_;  // bos_token and the like
};

}  // namespace neap::chat

// Texts and conversations of data as tokens.
//
// Threads   const calls from any thread.   Failure   Error with the text's place.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/json.h"
#include "spec/architecture.h"
#include "spec/job.h"
#include "text/chat/conversation.h"
#include "text/tokenizer/text_tokens.h"
#include "text/tokenizer/tokenizer.h"
#include "train/sequences.h"

namespace neap::rlhf {

/// What texts become tokens with; the job and the tokenizer outlive it.
struct TextContext {
  const spec::Job& job;
  const text::Tokenizer& tokenizer;
  std::filesystem::path tokenizer_folder;
  spec::Architecture actor;
  text::TextTokens text;  ///< of the actor
  /// The tokenizer's chat template; the failure says why there is none.
  Result<chat::Conversations> conversations = chat::Conversations::make(tokenizer);
};

/// Opens the actor's tokenizer into `tokenizer`, and fails where another model reads other ids.
[[nodiscard]] TextContext open_texts(const spec::Job& job,
                                     std::optional<text::Tokenizer>& tokenizer);

/// Tokens of a prompt, as the model is to see its start: a text, or a conversation by the chat
/// template. The template gets the tools of `row`.
[[nodiscard]] train::Tokens encode_prompt(const TextContext& context, const Json& row,
                                          const Json& prompt, const std::string& where);
/// Tokens of a response and the one that ends it: a text, or a message of the assistant. An empty
/// text is an error.
[[nodiscard]] train::Tokens encode_response(const TextContext& context, const Json& response,
                                            const std::string& where);

/// A text to train on, from its first trained token on the "response".
struct TrainingText {
  train::Tokens prompt, response;
  train::TokenMask mask;  ///< of the response
};
/// A prompt and its response; where `response` is null the prompt is a whole conversation, and what
/// the assistant wrote is trained on.
[[nodiscard]] TrainingText encode_training_text(const TextContext& context, const Json& row,
                                                const Json& prompt, const Json& response,
                                                const std::string& where);

}  // namespace neap::rlhf

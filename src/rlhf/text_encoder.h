// Texts and conversations of data as tokens.
//
// Threads   const calls from any thread.   Failure   Error with the text's place.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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

/// A prompt and texts that go on from it.
struct ContinuedPrompt {
  train::Tokens prompt;
  std::vector<train::Tokens> responses;
};
/// Each response is a text or one message of the assistant. After a conversation it is what the chat template adds for it,
/// and starts where the first of them differs from the prompt with the head of the assistant's turn: TRL's rule. Otherwise,
/// and for a reward model, whose score is read at the end token, it is the text and the end token. An empty text is an
/// error.
[[nodiscard]] ContinuedPrompt encode_continued(const TextContext& context, const Json& row,
                                               const Json& prompt,
                                               const std::vector<Json>& responses,
                                               const std::string& where);

/// A text to train on, from its first trained token on the "response".
struct TrainingText {
  train::Tokens prompt, response;
  train::TokenMask mask;  ///< of the response
};
/// A prompt and its response; where `response` is null the prompt is a whole conversation, and what the assistant wrote is
/// trained on, or with data.assistant_only_loss = false everything.
[[nodiscard]] TrainingText encode_training_text(const TextContext& context, const Json& row,
                                                const Json& prompt, const Json& response,
                                                const std::string& where);

}  // namespace neap::rlhf

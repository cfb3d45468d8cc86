// Encodes texts and conversations of the data as tokens.
//
// Threads   const calls from any thread.
// Failure   Error with the text's location.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "spec/job/job.h"
#include "spec/model/architecture.h"
#include "text/chat/conversation.h"
#include "text/tokenizer/text_tokens.h"
#include "text/tokenizer/tokenizer.h"
#include "train/sequences.h"

namespace neap::rlhf {

/// Hash of the tokenizer's files in a folder.
[[nodiscard]] std::string hash_of_tokenizer(const std::filesystem::path& folder);

/// The inputs of encoding. The job and the tokenizer must outlive it.
struct TextContext {
  const spec::Job& job;
  const text::Tokenizer& tokenizer;
  std::filesystem::path tokenizer_folder;
  spec::Architecture actor;
  text::TextTokens text;  ///< of the actor
  /// The tokenizer's chat template, or the reason why there is none.
  Result<chat::Conversations> conversations = chat::Conversations::make(tokenizer);
  std::string tokenizer_hash = hash_of_tokenizer(tokenizer_folder);
};

/// Opens the actor's tokenizer into `tokenizer`. Fails if another model uses other token ids.
[[nodiscard]] TextContext open_texts(const spec::Job& job,
                                     std::optional<text::Tokenizer>& tokenizer);

/// The tokens of a prompt, up to where the response starts. It is a text, or a conversation in the
/// chat template. The template gets the tools of `row`.
[[nodiscard]] train::Tokens encode_prompt(const TextContext& context, const Json& row,
                                          const Json& prompt, const std::string& where);

/// A prompt and texts that continue it.
struct ContinuedPrompt {
  train::Tokens prompt;
  std::vector<train::Tokens> responses;
};
/// Encodes a prompt and its responses. Each response is a text or one message of the assistant.
/// After a conversation, it is what the chat template adds for that message, starting where the
/// first response differs from the prompt with the assistant's header (TRL's rule). Otherwise it is
/// the text and the end token. This also holds for a reward model, whose score is read at the end
/// token. An empty text is an error.
[[nodiscard]] ContinuedPrompt encode_continued(const TextContext& context, const Json& row,
                                               const Json& prompt,
                                               const std::vector<Json>& responses,
                                               const std::string& where);

/// A training text. "response" starts at the first trained token.
struct TrainingText {
  train::Tokens prompt, response;
  train::TokenMask mask;  ///< mask of the response
};
/// Encodes a prompt and its response. If `response` is null, the prompt is a whole conversation.
/// Then the assistant's messages are trained on, or everything with data.assistant_only_loss =
/// false.
[[nodiscard]] TrainingText encode_training_text(const TextContext& context, const Json& row,
                                                const Json& prompt, const Json& response,
                                                const std::string& where);

}  // namespace neap::rlhf

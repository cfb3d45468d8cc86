// A conversation with a checkpoint on the terminal. A line of input is a user's message; the reply
// is written token by token.
//
// Threads   one at a time.
//
// Failure   neap::Error.
//
// Cost      each reply prefills the whole conversation.
#pragma once

#include <cstdint>
#include <istream>

#include "cli/sampling_settings.h"
#include "cli/text_model.h"

namespace neap::cli {

struct ChatOptions {
  std::uint64_t seed = 1;
  std::int64_t prefill_tokens = 0;  ///< prompt tokens per prefill pass
  bool ask = false;                 ///< shows a prompt sign for the user's input
};

/// Runs until `input` ends. Ctrl-C stops a reply; its text so far stays in the conversation.
void run_chat(TextModel& model, const SamplingSettings& settings, const ChatOptions& options,
              std::istream& input);

}  // namespace neap::cli

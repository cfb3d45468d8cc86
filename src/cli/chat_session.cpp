#include "cli/chat_session.h"

#include <string>
#include <string_view>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "cli/command.h"
#include "rollout/stop_strings.h"
#include "text/chat/conversation.h"

namespace neap::cli {
namespace {

class ChatSession {
 public:
  ChatSession(TextModel& model, const SamplingSettings& settings, const ChatOptions& options)
      : model_(model),
        settings_(settings),
        options_(options),
        conversations_(value_or_throw(chat::Conversations::make(model.tokenizer()))) {}

  void run(std::istream& input) {
    std::string line;
    while (true) {
      if (options_.ask) show("user> ");
      if (!std::getline(input, line)) break;
      if (line.empty()) continue;
      messages_.push_back({{"role", "user"}, {"content", line}});
      reply();
    }
    if (options_.ask) show("\n");
  }

 private:
  static void show(std::string_view text) { throw_if_error(write_output(text)); }
  void reply();

  TextModel& model_;
  const SamplingSettings& settings_;
  const ChatOptions& options_;
  chat::Conversations conversations_;
  Json messages_ = Json::array();
};

void ChatSession::reply() {
  const rollout::Prompt prompt{value_or_throw(conversations_.prompt(messages_, Json())),
                               random_key({options_.seed, messages_.size()})};
  rollout::GenerateOptions options;
  options.sampling = settings_.sampling();
  options.max_new_tokens = settings_.most_new_tokens(
      std::ssize(prompt.tokens), model_.shape().longest_sequence(), "the conversation");
  text::StreamDecoder decoder(model_.tokenizer());
  rollout::StopStrings stops(model_.tokenizer(), settings_.stop());
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    show(piece);
  };
  options.stops = [&](std::size_t response, std::int64_t token) {
    add(decoder.push(token));
    return stops.push(response, token);
  };
  options.on_progress = [](std::size_t) { return !InterruptScope::requested(); };
  show("assistant> ");
  const InterruptScope interrupt("", InterruptSignals::kInterrupt);
  const bool ended = model_.generate({prompt}, {1, options_.prefill_tokens}, options).front().ended;
  add(decoder.finish());
  show("\n");
  messages_.push_back({{"role", "assistant"}, {"content", std::move(text)}});
  if (InterruptScope::requested()) {
    log::info("The reply was stopped; Ctrl-D ends the conversation");
  } else if (!ended) {
    log::info("The reply was cut at its longest length; --max-new-tokens sets it");
  }
}

}  // namespace

void run_chat(TextModel& model, const SamplingSettings& settings, const ChatOptions& options,
              std::istream& input) {
  ChatSession(model, settings, options).run(input);
}

}  // namespace neap::cli

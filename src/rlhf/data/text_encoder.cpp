#include "rlhf/data/text_encoder.h"

#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "data/content_hash.h"
#include "data/fields.h"
#include "rlhf/data/tokenizers.h"
#include "text/tokenizer/tokenizer_files.h"

namespace neap::rlhf {
namespace {

const chat::Conversations& conversations_of(const TextContext& context, const std::string& where) {
  if (context.conversations.ok()) return *context.conversations;
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: the conversation needs a chat template. {} ({})", where,
                     context.conversations.status().message(), context.tokenizer_folder.string()));
}

// Without a template, a conversation counts as text only if it is one message without tools.
bool is_text(const TextContext& context, const Json& messages, const Json& tools) {
  return !context.conversations.ok() && tools.is_null() && messages.size() == 1 &&
         messages[0].value("content", Json()).is_string();
}

void check_text(const std::string& text, const std::string& where) {
  if (text.empty())
    throw Error(ErrorCode::kInvalidArgument, format("{}: the text is empty", where));
}

}  // namespace

std::string hash_of_tokenizer(const std::filesystem::path& folder) {
  std::string all;
  for (const char* name : text::kTokenizerFiles) {
    const Result<std::string> hash = data::hash_of_file(folder / name);
    all += format("{} {}\n", name, hash.ok() ? *hash : "none");
  }
  return hash_of(all);
}

TextContext open_texts(const spec::Job& job, std::optional<text::Tokenizer>& tokenizer) {
  const spec::ModelConfig& model = job.actor_model;
  const spec::ModelFiles files =
      value_or_throw(job.model_files(job.main_model(), model.path, model.lora_adapter_path));
  const std::filesystem::path folder =
      model.tokenizer_path.empty() ? files.tokenizer() : job.resolve(model.tokenizer_path);
  tokenizer.emplace(text::Tokenizer::from_folder(folder));
  check_tokenizers(job, *tokenizer);
  const spec::Architecture actor = value_or_throw(job.configs.architecture(files.base));
  return {job, *tokenizer, folder, actor, text::text_tokens(files.base, actor, *tokenizer)};
}

train::Tokens encode_prompt(const TextContext& context, const Json& row, const Json& prompt,
                            const std::string& where) {
  const Json tools = value_or_throw(data::tools_field(row, prompt, where));
  if (!prompt.is_string() && !is_text(context, prompt, tools)) {
    Result<train::Tokens> ids = conversations_of(context, where).prompt(prompt, tools);
    if (!ids.ok()) throw Error(Status(ids.status()).with_context(where));
    return std::move(*ids);
  }
  const std::string text = (prompt.is_string() ? prompt : prompt[0]["content"]).get<std::string>();
  check_text(text, where);
  return context.tokenizer.encode_prompt(text);
}

namespace {

// The text of a response, which is a text or one message of the assistant.
std::optional<std::string> text_of_response(const Json& response, const std::string& where) {
  const bool message = response.is_array() && response.size() == 1 &&
                       response[0].value("role", Json()) == "assistant";
  if (!response.is_string() && !message) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: a response is text or one message of the assistant", where));
  }
  const Json content = message ? response[0].value("content", Json()) : response;
  if (!content.is_string()) return std::nullopt;
  check_text(content.get_ref<const std::string&>(), where);
  return content.get<std::string>();
}

train::Tokens with_end(const TextContext& context, const Json& response, const std::string& where) {
  const std::optional<std::string> text = text_of_response(response, where);
  if (!text)
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the response is a message without text", where));
  train::Tokens tokens = context.tokenizer.encode(*text);
  tokens.push_back(context.text.end);
  return tokens;
}

// The prompt with the response as its next message.
train::Tokens completed(const TextContext& context, const Json& prompt, const Json& response,
                        const Json& tools, const std::string& where) {
  (void)text_of_response(response, where);
  Json messages = prompt;
  messages.push_back(response.is_array() ? response[0]
                                         : Json{{"role", "assistant"}, {"content", response}});
  Result<train::Tokens> ids = conversations_of(context, where).whole(messages, tools);
  if (!ids.ok()) throw Error(Status(ids.status()).with_context(where));
  return std::move(*ids);
}

}  // namespace

ContinuedPrompt encode_continued(const TextContext& context, const Json& row, const Json& prompt,
                                 const std::vector<Json>& responses, const std::string& where) {
  ContinuedPrompt out{encode_prompt(context, row, prompt, where), {}};
  const Json tools = value_or_throw(data::tools_field(row, prompt, where));
  if (context.job.task == spec::Task::kReward || prompt.is_string() ||
      is_text(context, prompt, tools)) {
    for (const Json& response : responses)
      out.responses.push_back(with_end(context, response, where));
    return out;
  }
  auto end = out.prompt.end();
  for (const Json& response : responses) {
    const train::Tokens& all =
        out.responses.emplace_back(completed(context, prompt, response, tools, where));
    end = std::min(
        end, std::mismatch(out.prompt.begin(), out.prompt.end(), all.begin(), all.end()).first);
  }
  out.prompt.erase(end, out.prompt.end());
  if (out.prompt.empty())
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the chat template writes the prompt in another way when a response "
                       "follows",
                       where));
  for (train::Tokens& response : out.responses)
    response.erase(response.begin(), response.begin() + std::ssize(out.prompt));
  return out;
}

namespace {

// The first token is not trained: no token precedes it from which it could be predicted.
TrainingText all_but_the_first(const TextContext& context, const Json& messages, const Json& tools,
                               const std::string& where) {
  const Result<train::Tokens> ids = conversations_of(context, where).whole(messages, tools);
  if (!ids.ok()) throw Error(Status(ids.status()).with_context(where));
  if (ids->size() < 2)
    throw Error(ErrorCode::kInvalidArgument, format("{}: the conversation has no text", where));
  return {{ids->front()}, {ids->begin() + 1, ids->end()}, train::TokenMask(ids->size() - 1, true)};
}

}  // namespace

TrainingText encode_training_text(const TextContext& context, const Json& row, const Json& prompt,
                                  const Json& response, const std::string& where) {
  if (!response.is_null()) {
    ContinuedPrompt made = encode_continued(context, row, prompt, {response}, where);
    TrainingText out{std::move(made.prompt), std::move(made.responses.front()), {}};
    out.mask.assign(out.response.size(), true);
    return out;
  }
  if (!prompt.is_array()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: field \"{}\" is missing; only a conversation needs none", where,
                       context.job.data.response_key));
  }
  const Json tools = value_or_throw(data::tools_field(row, prompt, where));
  if (!context.job.data.assistant_only_loss)
    return all_but_the_first(context, prompt, tools, where);
  const Result<chat::TrainedIds> made = conversations_of(context, where).trained(prompt, tools);
  if (!made.ok()) throw Error(Status(made.status()).with_context(where));
  const auto first = std::find(made->trained.begin(), made->trained.end(), true);
  const auto last = std::find(made->trained.rbegin(), made->trained.rend(), true).base();
  if (first == made->trained.end() || first == made->trained.begin()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the assistant's text needs other text before it", where));
  }
  const auto at = first - made->trained.begin();
  const auto end = last - made->trained.begin();
  return {{made->ids.begin(), made->ids.begin() + at},
          {made->ids.begin() + at, made->ids.begin() + end},
          {first, last}};
}

}  // namespace neap::rlhf

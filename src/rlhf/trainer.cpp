#include "rlhf/trainer.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "base/status.h"

namespace neap::rlhf {

model::SaveOptions Context::save_options() const {
  model::SaveOptions options;
  options.companions = tokenizer_folder;
  options.max_shard = job.trainer.max_shard_size;
  return options;
}

std::vector<std::size_t> Context::share_of(std::size_t rows) const {
  std::vector<std::size_t> all(rows);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return sharder().of(all);
}

train::WorkerSpec Context::worker_spec(spec::ModelId model) const {
  const spec::ModelSource& source = *recipe.find(model);
  train::WorkerSpec out;
  out.role = to_string(model);
  out.folder = job.resolve(source.path);
  out.head = source.head;
  out.seed = static_cast<std::uint64_t>(job.trainer.seed);
  out.init_head = source.init_head;
  if (source.trained == nullptr) return out;
  out.trained = true;
  out.lora = source.trained->lora;
  out.optimizer = *source.optimizer;
  return out;
}

train::BatchOrder Context::batch_order(std::size_t rows) const {
  return {rows, static_cast<std::size_t>(job.data.train_batch_size), job.data.shuffle,
          static_cast<std::uint64_t>(job.trainer.seed)};
}

std::unique_ptr<Trainer> make_trainer(Context& context) {
  switch (context.job.task) {
    case spec::Task::kSft:
      return make_sft_trainer(context);
    case spec::Task::kReward:
      return make_reward_trainer(context);
    case spec::Task::kDpo:
      return make_dpo_trainer(context);
    case spec::Task::kPpo:
    case spec::Task::kGrpo:
      return make_ppo_trainer(context);
    case spec::Task::kEval:
      break;
  }
  throw Error(ErrorCode::kInternal, "task out of range");
}

Stopwatch::Stopwatch(Metrics& metrics, const char* name) : metrics_(metrics), name_(name) {}
Stopwatch::~Stopwatch() {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  metrics_[std::string("timing_s/") + name_] += seconds.count();
}

void summarize(Metrics& metrics, const std::string& prefix, const at::Tensor& x,
               const at::Tensor& mask) {
  const at::Tensor flat = mask.defined() ? x.masked_select(mask.gt(0)) : x.flatten();
  if (flat.numel() == 0) return;
  metrics[prefix + "/mean"] = flat.to(at::kDouble).mean().item<double>();
  metrics[prefix + "/max"] = flat.max().item<double>();
  metrics[prefix + "/min"] = flat.min().item<double>();
}

train::SequenceShape sequence_shape(const Context& context) {
  const spec::Job& job = context.job;
  return {job.max_sequence_length(), job.data.max_response_length, context.text.pad};
}

namespace {

void check_length(const train::Tokens& tokens, const std::string& where, std::int64_t limit,
                  const char* key) {
  if (static_cast<std::int64_t>(tokens.size()) <= limit) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: the text has {} tokens; {} is {}", where, tokens.size(), key, limit));
}

void check_text(const std::string& text, const std::string& where) {
  if (text.empty())
    throw Error(ErrorCode::kInvalidArgument, format("{}: the text is empty", where));
}

}  // namespace

namespace {

// A conversation without a template is a text only where it is one message.
const chat::Conversations* conversations_of(const TextContext& context, const Json& messages,
                                            const std::string& where) {
  if (context.conversations.ok()) return &*context.conversations;
  if (messages.size() == 1 && messages[0].value("content", Json()).is_string()) return nullptr;
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: the conversation needs a chat template. {} ({})", where,
                     context.conversations.status().message(), context.tokenizer_folder.string()));
}

train::Tokens prompt_tokens(const TextContext& context, const Json& prompt,
                            const std::string& where) {
  if (!prompt.is_string()) {
    if (const auto* chat = conversations_of(context, prompt, where)) {
      Result<train::Tokens> ids = chat->prompt(prompt);
      if (!ids.ok()) throw Error(Status(ids.status()).with_context(where));
      return std::move(*ids);
    }
  }
  const std::string text = (prompt.is_string() ? prompt : prompt[0]["content"]).get<std::string>();
  check_text(text, where);
  return context.tokenizer.encode_prompt(text);
}

}  // namespace

train::Tokens encode_prompt(const TextContext& context, const Json& prompt,
                            const std::string& where) {
  train::Tokens tokens = prompt_tokens(context, prompt, where);
  check_length(tokens, where, context.job.data.max_prompt_length, "data.max_prompt_length");
  return tokens;
}

train::Tokens encode_response(const Context& context, const Json& response,
                              const std::string& where) {
  const bool message = response.is_array() && response.size() == 1 &&
                       response[0].value("role", "") == "assistant" &&
                       response[0].value("content", Json()).is_string();
  if (!response.is_string() && !message) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: a response is text or one message of the assistant", where));
  }
  const std::string text = (message ? response[0]["content"] : response).get<std::string>();
  check_text(text, where);
  train::Tokens tokens = context.tokenizer.encode(text);
  tokens.push_back(context.text.end);
  check_length(tokens, where, context.job.data.max_response_length,
               "data.max_response_length, with the token that ends the text,");
  return tokens;
}

TrainingText encode_training_text(const Context& context, const Json& prompt, const Json& response,
                                  const std::string& where) {
  if (!response.is_null()) {
    TrainingText out{
        encode_prompt(context, prompt, where), encode_response(context, response, where), {}};
    out.mask.assign(out.response.size(), true);
    return out;
  }
  if (!prompt.is_array()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: field \"{}\" is missing; only a conversation needs none", where,
                       context.job.data.response_key));
  }
  if (!context.conversations.ok()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("{}: the conversation needs a chat template. {} ({})", where,
               context.conversations.status().message(), context.tokenizer_folder.string()));
  }
  const Result<chat::TrainedIds> made = context.conversations->trained(prompt);
  if (!made.ok()) throw Error(Status(made.status()).with_context(where));
  const auto first = std::find(made->trained.begin(), made->trained.end(), true);
  const auto last = std::find(made->trained.rbegin(), made->trained.rend(), true).base();
  if (first == made->trained.end() || first == made->trained.begin()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the assistant's text needs other text before it", where));
  }
  const auto at = first - made->trained.begin();
  const auto end = last - made->trained.begin();
  TrainingText out{{made->ids.begin(), made->ids.begin() + at},
                   {made->ids.begin() + at, made->ids.begin() + end},
                   {first, last}};
  check_length(out.prompt, where, context.job.data.max_prompt_length,
               "data.max_prompt_length, up to the assistant's first token,");
  check_length(out.response, where, context.job.data.max_response_length,
               "data.max_response_length, from the assistant's first token on,");
  return out;
}

std::vector<std::filesystem::path> resolve_all(const spec::Job& job,
                                               const std::vector<std::string>& files) {
  std::vector<std::filesystem::path> out;
  for (const std::string& file : files) out.push_back(job.resolve(file));
  return out;
}

}  // namespace neap::rlhf

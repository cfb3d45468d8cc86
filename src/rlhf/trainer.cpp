#include "rlhf/trainer.h"

#include <ATen/ATen.h>

#include "base/format.h"
#include "base/status.h"
#include "rlhf/update_phases.h"

namespace neap::rlhf {

std::unique_ptr<Trainer> make_trainer(Context& context) {
  switch (context.job.task) {
    case spec::Task::kSft:
      return make_sft_trainer(context);
    case spec::Task::kReward:
      return make_reward_trainer(context);
    case spec::Task::kPpo:
    case spec::Task::kGrpo:
      return make_ppo_trainer(context);
  }
  throw Error(ErrorCode::kInternal, "task out of range");
}

Stopwatch::Stopwatch(Metrics& metrics, const char* name) : metrics_(metrics), name_(name) {}
Stopwatch::~Stopwatch() {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  metrics_[std::string("timing_s/") + name_] += seconds.count();
}

void StepOptimizer::begin(std::int64_t, std::int64_t) {
  phases_.begin_backward();
  model_.optimizer().zero_grads();
}
void StepOptimizer::finish(std::int64_t) {
  const double lr = train::learning_rate(context_.job.actor.optim, step_, context_.total_steps);
  phases_.begin_update();
  metrics_["train/grad_norm"] = model_.update(lr, context_.job.actor.grad_clip);
  metrics_["train/lr"] = lr;
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

train::Tokens encode_prompt(const Context& context, const std::string& text,
                            const std::string& where) {
  check_text(text, where);
  train::Tokens tokens = context.tokenizer.encode_prompt(text);
  check_length(tokens, where, context.job.data.max_prompt_length, "data.max_prompt_length");
  return tokens;
}

train::Tokens encode_response(const Context& context, const std::string& text,
                              const std::string& where) {
  check_text(text, where);
  train::Tokens tokens = context.tokenizer.encode(text);
  tokens.push_back(context.text.end);
  check_length(tokens, where, context.job.data.max_response_length,
               "data.max_response_length, with the token that ends the text,");
  return tokens;
}

std::vector<std::filesystem::path> resolve_all(const spec::Job& job,
                                               const std::vector<std::string>& files) {
  std::vector<std::filesystem::path> out;
  for (const std::string& file : files) out.push_back(job.resolve(file));
  return out;
}

}  // namespace neap::rlhf

#include "rlhf/stage.h"

#include <ATen/ATen.h>

#include "base/format.h"
#include "base/status.h"

namespace neap::rlhf {

std::unique_ptr<Stage> make_stage(Context& context) {
  const std::string& task = context.job.task;
  if (task == "sft") return make_sft_stage(context);
  if (task == "reward") return make_reward_stage(context);
  return make_ppo_stage(context);
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

train::SequenceShape sequence_shape(const spec::Job& job, std::int64_t pad) {
  return {job.max_sequence_length(), job.data.max_response_length, pad};
}

std::int64_t eos_token(const spec::ModelShape& shape) {
  if (shape.eos_token_id < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "The model's config.json has no eos_token_id: nothing would end a text");
  }
  return shape.eos_token_id;
}

std::int64_t pad_token(const spec::ModelShape& shape) {
  return shape.pad_token_id >= 0 ? shape.pad_token_id : eos_token(shape);
}

train::Tokens encode_limited(const Context& context, const std::string& text,
                             const std::string& where, std::int64_t limit, const char* key) {
  train::Tokens tokens = context.tokenizer.encode(text);
  if (tokens.empty())
    throw Error(ErrorCode::kInvalidArgument, format("{}: the text is empty", where));
  if (static_cast<std::int64_t>(tokens.size()) > limit) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the text has {} tokens; {} is {}", where, tokens.size(), key, limit));
  }
  return tokens;
}

std::vector<std::filesystem::path> resolve_all(const spec::Job& job,
                                               const std::vector<std::string>& files) {
  std::vector<std::filesystem::path> out;
  for (const std::string& file : files) out.push_back(job.resolve(file));
  return out;
}

}  // namespace neap::rlhf

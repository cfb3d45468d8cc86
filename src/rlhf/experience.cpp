#include "rlhf/experience.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/progress.h"
#include "train/random.h"

namespace neap::rlhf {
namespace {

// Runs `work` on micro batches inside a phase and joins its results, (b, ...) each, on the host.
template <class Work>
at::Tensor by_micro_batch(Context& context, const train::Sequences& sequences, const char* phase,
                          std::int64_t micro_batch, const Work& work) {
  std::vector<at::Tensor> parts;
  const auto guard = context.runtime.phase(phase);
  for (const train::MicroBatch& rows : train::micro_batches(sequences.size(), micro_batch)) {
    const train::Sequences micro =
        sequences.slice(rows.first, rows.count, context.runtime.device());
    parts.push_back(bridge::to_host(work(micro).narrow(0, rows.seen, rows.fresh())));
  }
  const bridge::HostScope host;
  return at::cat(parts);
}

}  // namespace

void generate_responses(Context& context, train::Role& actor,
                        const std::vector<train::Tokens>& prompts, std::int64_t n,
                        std::uint64_t key, Experience& out) {
  const spec::Job& job = context.job;
  const parallel::Share share = context.share();
  std::vector<rollout::Prompt> requests;
  std::vector<train::Tokens> repeated;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::int64_t k = 0; k < n; ++k) {
      const auto turn = static_cast<std::uint64_t>(k);
      requests.push_back({prompts[i], train::random_key({key, share.global(i), turn})});
      repeated.push_back(prompts[i]);
    }
  }
  rollout::GenerateOptions options;
  options.sampling = {job.rollout.temperature, job.rollout.top_p, job.rollout.top_k};
  options.prompt_width = job.data.max_prompt_length;
  options.max_new_tokens = job.data.max_response_length;
  options.eos_token_ids = context.text.ends;
  options.pad_token_id = context.text.pad;
  std::vector<train::Tokens> responses;
  {
    const auto phase = context.runtime.phase("generate");
    model::KvCache cache = model::KvCache::over(
        context.runtime.region("rollout.kv", "kv", context.runtime.compute_dtype()), actor.shape(),
        job.rollout_batch(), job.max_sequence_length());
    for (rollout::Response& response : rollout::generate(actor.model(), cache, requests, options)) {
      responses.push_back(std::move(response.tokens));
    }
  }
  out.sequences = train::make_sequences(repeated, responses, sequence_shape(context));
}

Experience gather_experience(Context& context, const Experience& mine, std::int64_t n,
                             std::int64_t rows) {
  const parallel::Share share = context.share();
  const auto all = [&](const at::Tensor& t) {
    return t.defined() ? share.gather(t, n).narrow(0, 0, rows) : t;
  };
  const train::Sequences& s = mine.sequences;
  Experience out;
  out.sequences = {all(s.tokens), all(s.columns), all(s.targets), all(s.mask), all(s.last)};
  out.old_log_probs = all(mine.old_log_probs);
  out.entropy = all(mine.entropy);
  out.ref_log_probs = all(mine.ref_log_probs);
  out.values = all(mine.values);
  out.scores = all(mine.scores);
  return out;
}

TokenLogProbs response_log_probs(Context& context, model::Transformer& model,
                                 const train::Sequences& sequences, const char* phase,
                                 std::int64_t micro_batch, bool entropy) {
  model::LogProbOptions options;
  options.temperature = context.job.rollout.temperature > 0 ? context.job.rollout.temperature : 1;
  options.entropy = entropy;
  const at::Tensor both =
      by_micro_batch(context, sequences, phase, micro_batch, [&](const train::Sequences& micro) {
        const at::Tensor hidden = model.forward(model::Batch::padded(micro.tokens));
        const model::LogProbs out =
            model.log_probs(hidden, micro.rows(), micro.targets.flatten(), options);
        at::Tensor result = out.log_probs.view_as(micro.mask).unsqueeze(1);
        if (!entropy) return result;
        return at::cat({result, out.entropy.view_as(micro.mask).unsqueeze(1)}, 1);
      });  // (B, 1 or 2, T)
  // Rows after the end of a response contain garbage, so they are zeroed.
  TokenLogProbs out{both.select(1, 0) * sequences.mask, {}};
  if (entropy) out.entropy = both.select(1, 1) * sequences.mask;
  return out;
}

at::Tensor response_values(Context& context, train::Role& critic,
                           const train::Sequences& sequences) {
  const at::Tensor values = by_micro_batch(
      context, sequences, "values", context.job.values_micro_batch(),
      [&](const train::Sequences& micro) {
        const at::Tensor hidden = critic.model().forward(model::Batch::padded(micro.tokens));
        return critic.model().scores(hidden, micro.rows()).view_as(micro.mask);
      });
  return values * sequences.mask;
}

at::Tensor response_scores(Context& context, train::Role& reward,
                           const train::Sequences& sequences) {
  train::Sequences read = sequences;
  {
    const bridge::HostScope host;
    train::read_scores_before_padding(read, reward.shape().pad_token_id);
  }
  return by_micro_batch(context, read, "rewards", context.job.reward_micro_batch(),
                        [&](const train::Sequences& micro) {
                          const at::Tensor hidden =
                              reward.model().forward(model::Batch::padded(micro.tokens));
                          return reward.model().scores(hidden, micro.last_rows());
                        });
}

at::Tensor place_at_end(const at::Tensor& scores, const at::Tensor& mask) {
  at::Tensor out = at::zeros_like(mask);
  const at::Tensor last = mask.sum(-1).to(at::kLong).sub(1).clamp_min(0).unsqueeze(-1);
  out.scatter_(-1, last, scores.to(out.scalar_type()).unsqueeze(-1));
  return out * mask;
}

}  // namespace neap::rlhf

#include "rlhf/experience/experience.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/progress.h"
#include "base/random.h"
#include "rlhf/experience/generation_share.h"
#include "rlhf/experience/row_exchange.h"
#include "rlhf/trainer/live_backend.h"
#include "rollout/stop_strings.h"
#include "train/packed_batch.h"

namespace neap::rlhf {
namespace {

Experience experience_of(const Context& context, const std::vector<train::Tokens>& prompts,
                         std::vector<rollout::Response> generated, bool log_probs) {
  const auto rows = static_cast<std::int64_t>(generated.size());
  const at::TensorOptions single = at::TensorOptions().dtype(at::kFloat);
  Experience out;
  out.truncated = at::zeros({rows}, single);
  if (log_probs)
    out.rollout_log_probs = at::zeros({rows, context.job.data.max_response_length}, single);
  std::vector<train::Tokens> responses;
  for (std::int64_t i = 0; i < rows; ++i) {
    rollout::Response& response = generated[static_cast<std::size_t>(i)];
    if (!response.ended) out.truncated[i] = 1;
    if (log_probs) {
      const auto length = static_cast<std::int64_t>(response.log_probs.size());
      out.rollout_log_probs[i].narrow(0, 0, length).copy_(at::tensor(response.log_probs, single));
    }
    responses.push_back(std::move(response.tokens));
  }
  out.sequences = train::make_sequences(prompts, responses, sequence_shape(context));
  return out;
}

// Sequences in the arrangement of a scoring phase.
struct Arranged {
  Arranged(const Context& context, const train::Sequences& sequences, const spec::Phase& phase) {
    const bridge::HostScope host;
    batch = train::arrange(sequences, spec::batching_of(context.job, phase), train::Use::kScoring,
                           1, context.context_shard(phase.model));
    experience.sequences = batch.sequences;
  }
  [[nodiscard]] at::Tensor restored(const at::Tensor& t) const { return batch.restored(t); }
  train::ArrangedBatch batch;
  step::Experience<at::Tensor> experience;
};

// With sampled lengths, decides where responses end. Otherwise it never ends one.
class DrawnLengths {
 public:
  DrawnLengths(const spec::Job& job, const std::vector<rollout::Prompt>& prompts) {
    if (!job.rollout.sample_lengths) return;
    constexpr double kSpread = 32;  // ratio of the longest to the shortest length
    constexpr std::uint64_t kLengthStream = 0x6c656eULL;
    const auto longest = static_cast<double>(job.data.max_response_length);
    for (const rollout::Prompt& prompt : prompts) {
      const auto u = static_cast<double>(uniform(random_key({prompt.key, kLengthStream}), 0));
      left_.push_back(std::max<std::int64_t>(1, std::llround(longest * std::pow(kSpread, -u))));
    }
  }
  /// Counts a token of the response.
  bool ends(std::size_t response) { return !left_.empty() && --left_[response] <= 0; }

 private:
  std::vector<std::int64_t> left_;
};

// With a copy of the weights for the rollout: the phases that fill it.
void prepare_rollout(Context& context, train::ModelWorker& actor) {
  for (const spec::PhaseId id : {spec::PhaseId::kStoreWeights, spec::PhaseId::kWakeUp}) {
    const spec::Phase* const phase = context.recipe.find(id);
    if (phase == nullptr) continue;
    run_phase(context, id, [&] {
      if (phase->gathers_weights) actor.gather_generator();
      if (phase->stores_weights) actor.store_generator();
      if (phase->loads_weights) actor.load_generator();
    });
  }
}

}  // namespace

Experience generate_responses(Context& context, train::ModelWorker& actor,
                              const std::vector<train::Tokens>& prompts,
                              const Generation& generation) {
  const spec::Job& job = context.job;
  const GenerationShare share(context, prompts);
  std::vector<rollout::Prompt> requests;
  for (std::size_t i = 0; i < share.prompts().size(); ++i) {
    const std::size_t place = generation.first_prompt + share.places()[i];
    for (std::int64_t k = 0; k < generation.n; ++k) {
      const auto turn = static_cast<std::uint64_t>(k);
      requests.push_back({share.prompts()[i], random_key({generation.key, place, turn})});
    }
  }
  rollout::GenerateOptions options;
  options.sampling = generation.sampling;
  options.prompt_width = job.data.max_prompt_length;
  options.max_new_tokens = job.data.max_response_length;
  options.eos_token_ids = context.text.ends;
  options.pad_token_id = context.text.pad;
  options.prefill = job.prefill();
  rollout::StopStrings stops(context.tokenizer, job.rollout.stop);
  DrawnLengths lengths(job, requests);
  options.stops = [&](std::size_t response, std::int64_t token) {
    const bool stopped = stops.push(response, token);
    return lengths.ends(response) || stopped;
  };
  if (context.progress != nullptr)
    context.progress->begin_part(std::string(to_string(generation.phase)), 0, requests.size(),
                                 "responses");
  options.on_progress = [&](std::size_t ended) {
    context.ranks.show_life();
    if (generation.on_progress) generation.on_progress(ended);
    if (context.progress != nullptr) context.progress->update_part(ended);
    return true;
  };
  std::vector<rollout::Response> generated;
  prepare_rollout(context, actor);
  run_phase(context, generation.phase, [&] {
    const step::CacheShape shape = step::cache_shape(job);
    const auto region = [&](std::string_view part, at::ScalarType type) {
      return context.runtime.region({spec::TagKind::kKeyValues}, part, type);
    };
    ops::AnyKvCache cache =
        ops::cache_over(region("kv", context.runtime.compute_dtype()),
                        shape.paged() ? region(step::kPageTablePart, at::kLong) : at::Tensor(),
                        actor.spec().generating(), shape);
    const spec::Phase& phase = *context.recipe.find(generation.phase);
    if (phase.gathers_weights) actor.gather_generator();
    if (phase.graphs)
      options.graphs =
          context.runtime.region({spec::TagKind::kGraphs}, step::kGraphScratchPart, at::kByte);
    LiveBackend backend(job, actor.generator(), LiveGeneration{cache, requests, options});
    backend.run(phase);
    generated = backend.take_responses();
  });
  std::vector<train::Tokens> repeated;
  for (const train::Tokens& prompt : prompts)
    repeated.insert(repeated.end(), static_cast<std::size_t>(generation.n), prompt);
  return experience_of(context, repeated, share.own_responses(std::move(generated), generation.n),
                       generation.sampling.log_probs);
}

namespace {

std::vector<at::Tensor*> row_tensors(Experience& e) {
  train::Sequences& s = e.sequences;
  return {&s.tokens,      &s.columns,         &s.targets,           &s.mask,   &s.last,
          &s.lengths,     &e.old_log_probs,   &e.ref_log_probs,     &e.values, &e.advantages,
          &e.returns,     &e.rollout_weights, &e.entropy,           &e.scores, &e.baselines,
          &e.numbers,     &e.truncated,       &e.rollout_log_probs, &e.noise,  &e.rows,
          &e.model_scores};
}

}  // namespace

void transform_rows(Experience& e, const std::function<at::Tensor(const at::Tensor&)>& f) {
  for (at::Tensor* t : row_tensors(e)) {
    if (t->defined()) *t = f(*t);
  }
}

void take_rows(Experience& e, Experience other) {
  const std::vector<at::Tensor*> to = row_tensors(e), from = row_tensors(other);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (from[i]->defined()) *to[i] = *from[i];
}

Experience join(std::vector<Experience> parts) {
  Experience out = parts.front();
  const std::vector<at::Tensor*> joined = row_tensors(out);
  for (std::size_t i = 0; i < joined.size(); ++i) {
    if (!joined[i]->defined()) continue;
    std::vector<at::Tensor> each;
    each.reserve(parts.size());
    for (Experience& part : parts) each.push_back(*row_tensors(part)[i]);
    *joined[i] = at::cat(each);
  }
  return out;
}

RowCounts::RowCounts(const train::Sequences& of) {
  const bridge::HostScope host;
  const auto values = [](const at::Tensor& t) {
    const at::Tensor flat = t.to(at::kLong).contiguous();
    const auto* first = flat.const_data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(first, first + flat.numel());
  };
  sequences = values(of.lengths);
  responses = values(of.mask.sum(-1));
}

void gather_rows(Experience& e, const parallel::RowDeal& deal, const RowCounts& counts,
                 std::int64_t pad) {
  train::Sequences& s = e.sequences;
  const std::vector<at::Tensor*> of_responses = {&s.columns,       &s.targets,          &s.mask,
                                                 &e.old_log_probs, &e.ref_log_probs,    &e.values,
                                                 &e.entropy,       &e.rollout_log_probs};
  for (at::Tensor* t : row_tensors(e)) {
    if (t == &s.tokens) {
      *t = deal.gather(*t, counts.sequences, pad);
    } else if (std::find(of_responses.begin(), of_responses.end(), t) != of_responses.end()) {
      *t = deal.gather(*t, counts.responses, t == &s.targets ? pad : 0);
    } else {
      *t = deal.gather(*t);
    }
  }
  if (s.columns.defined()) train::complete_columns(s);
}

Experience gather_experience(Context& context, const Experience& mine, std::int64_t n,
                             std::int64_t rows) {
  Experience out = mine;
  const std::int64_t ranks = context.data_ranks().size();
  const std::int64_t all = mine.sequences.mask.size(0) * ranks;
  const parallel::RowDeal turns(context.data_ranks(), parallel::rows_in_turns(all, n, ranks));
  train::Sequences known;
  known.lengths = turns.gather(mine.sequences.lengths);
  known.mask = turns.gather(mine.sequences.mask.sum(-1, true));
  gather_rows(out, turns, RowCounts(known), sequence_shape(context).pad);
  transform_rows(out, [&](const at::Tensor& t) { return t.narrow(0, 0, rows); });
  return out;
}

Experience gather_numbers(Context& context, const Experience& mine, std::int64_t n,
                          std::int64_t rows) {
  Experience numbers = mine;
  for (at::Tensor train::Sequences::*t :
       {&train::Sequences::tokens, &train::Sequences::columns, &train::Sequences::targets})
    numbers.sequences.*t = at::Tensor();
  return gather_experience(context, numbers, n, rows);
}

train::Sequences send_sequences(Context& context, const train::Sequences& mine,
                                const parallel::RowDeal& has, const parallel::RowDeal& wants,
                                const RowCounts& counts) {
  const train::SequenceShape shape = sequence_shape(context);
  const at::Tensor tokens = has.send(mine.tokens, wants, counts.sequences, shape.pad);
  if (tokens.is_same(mine.tokens)) return mine;
  const bridge::HostScope host;
  std::vector<std::int64_t> lengths, responses;
  for (const std::int64_t row : wants.own()) {
    lengths.push_back(counts.sequences[static_cast<std::size_t>(row)]);
    responses.push_back(counts.responses[static_cast<std::size_t>(row)]);
  }
  return train::sequences_of(tokens, lengths, responses, shape);
}

TokenLogProbs response_log_probs(Context& context, ops::Transformer& model,
                                 const train::Sequences& sequences, spec::PhaseId phase) {
  const spec::ModelId id = context.recipe.find(phase)->model;
  const RowExchange exchange(context, id, sequences);
  const train::Sequences dealt = exchange.take(sequences);
  TokenLogProbs out;
  run_phase(context, phase, [&] { out = log_probs_in_phase(context, model, dealt, phase); });
  const auto own = [&](const at::Tensor& t) {
    return exchange.give_back(context.from_last_stage(id, t));
  };
  return {own(out.log_probs), own(out.entropy), own(out.right)};
}

TokenLogProbs log_probs_in_phase(Context& context, ops::Transformer& model,
                                 const train::Sequences& sequences, spec::PhaseId phase) {
  const spec::Phase& described = *context.recipe.find(phase);
  const Arranged arranged(context, sequences, described);
  LiveBackend backend(context.job, model, arranged.experience, {}, context.progress);
  backend.run(described);
  const bridge::HostScope host;
  // Positions after a response contain garbage, so they are zeroed.
  const auto joined = [&](const at::Tensor& t) {
    return t.defined() ? arranged.restored(t) * sequences.mask : t;
  };
  TokenLogProbs out{joined(backend.log_probs()), joined(backend.entropies()),
                    joined(backend.right())};
  return out;
}

namespace {

at::Tensor scores_of(Context& context, ops::Transformer& model, const train::Sequences& sequences,
                     spec::PhaseId phase) {
  const spec::Phase& described = *context.recipe.find(phase);
  const RowExchange exchange(context, described.model, sequences);
  const Arranged arranged(context, exchange.take(sequences), described);
  LiveBackend backend(context.job, model, arranged.experience, {}, context.progress);
  run_phase(context, phase, [&] { backend.run(described); });
  const at::Tensor scores = backend.scores();
  return exchange.give_back(context.from_last_stage(
      described.model, scores.defined() ? arranged.restored(scores) : scores));
}

}  // namespace

at::Tensor response_values(Context& context, train::ModelWorker& critic,
                           const train::Sequences& sequences) {
  return scores_of(context, critic.model(), sequences, spec::PhaseId::kValues) * sequences.mask;
}

at::Tensor response_scores(Context& context, train::ModelWorker& reward,
                           const train::Sequences& sequences, spec::PhaseId phase) {
  train::Sequences read = sequences;
  {
    const bridge::HostScope host;
    train::read_scores_before_padding(read, reward.shape().pad_token_id);
  }
  return scores_of(context, reward.model(), read, phase);
}

at::Tensor place_at_end(const at::Tensor& scores, const at::Tensor& mask) {
  at::Tensor out = at::zeros_like(mask);
  const at::Tensor last = mask.sum(-1).to(at::kLong).sub(1).clamp_min(0).unsqueeze(-1);
  out.scatter_(-1, last, scores.to(out.scalar_type()).unsqueeze(-1));
  return out * mask;
}

}  // namespace neap::rlhf

#include "rlhf/experience/kept_experience.h"

#include <ATen/ATen.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "rlhf/data/row_encoder.h"
#include "rlhf/experience/row_balance.h"
#include "spec/recipe/kept_experience.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

using spec::KeptField;

// Null: not a tensor of the experience.
at::Tensor* member_of(Experience& e, KeptField field) {
  switch (field) {
    case KeptField::kTokens:
      return &e.sequences.tokens;
    case KeptField::kLengths:
      return &e.sequences.lengths;
    case KeptField::kResponseLengths:
      return nullptr;
    case KeptField::kMask:
      return &e.sequences.mask;
    case KeptField::kScores:
      return &e.scores;
    case KeptField::kAdvantages:
      return &e.advantages;
    case KeptField::kOldLogProbs:
      return &e.old_log_probs;
    case KeptField::kReferenceLogProbs:
      return &e.ref_log_probs;
    case KeptField::kRolloutWeights:
      return &e.rollout_weights;
    case KeptField::kNoise:
      return &e.noise;
    case KeptField::kValues:
      return &e.values;
    case KeptField::kReturns:
      return &e.returns;
  }
  return nullptr;
}

ExperienceOrigin origin_of(const Context& context) {
  const spec::Architecture& actor = context.actor;
  return {context.tokenizer_hash,
          format("{}, {} layers of width {}, vocabulary {}", actor.model_type,
                 actor.num_hidden_layers, actor.hidden_size, actor.vocab_size),
          actor.vocab_size};
}

std::vector<std::int64_t> values_of(const at::Tensor& counts) {
  const at::Tensor flat = counts.contiguous();
  const auto* first = flat.const_data_ptr<std::int64_t>();
  return {first, first + flat.numel()};
}

// Metrics that belong to the process that made the experience.
bool is_of_process(std::string_view name) {
  return name.starts_with("timing_s/") || name.starts_with("global_seqlen/");
}

}  // namespace

void ExperienceKeeper::begin(std::int64_t step) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder_.string(), error.message()));
  remove_temporary_files(folder_);
  for (const std::int64_t kept : KeptSteps::list(folder_))
    if (kept > step) fs::remove(KeptSteps::file_of(folder_, kept), error);
  constexpr Bytes kNamesAndMetrics = 8_KiB;
  const Bytes each = spec::kept_bytes(context_.job) + kNamesAndMetrics;
  const auto steps = static_cast<std::uint64_t>(context_.total_steps - step);
  const fs::space_info disk = fs::space(folder_, error);
  const std::string text = format("Kept experience takes up to {} in {}: {} for each of {} steps",
                                  each * steps, folder_.string(), each, steps);
  if (!error && Bytes(disk.available) < each * steps) {
    log::warn(format("{}. The disk has {} free. The run stops with a checkpoint when it is full",
                     text, Bytes(disk.available)));
  } else {
    log::info(text);
  }
}

void ExperienceKeeper::keep(std::int64_t step, std::int64_t steps_per_epoch, const Experience& mine,
                            const parallel::RowDeal& deal, const RowCounts& counts,
                            const Metrics& metrics) {
  Experience read = mine, all;
  for (const spec::KeptTensor& kept : spec::kept_tensors(context_.job))
    if (at::Tensor* to = member_of(all, kept.field)) *to = *member_of(read, kept.field);
  gather_rows(all, deal, counts, sequence_shape(context_).pad);
  run_in_step(context_.ranks, [&] {
    if (!context_.ranks.first()) return;
    if (!std::exchange(begun_, true)) begin(step);
    KeptStep out;
    for (const spec::KeptTensor& kept : spec::kept_tensors(context_.job))
      if (const at::Tensor* from = member_of(all, kept.field)) out[kept.field] = *from;
    out[KeptField::kTokens] = out[KeptField::kTokens].to(at::kInt);
    out[KeptField::kLengths] = at::tensor(counts.sequences, at::kLong);
    out[KeptField::kResponseLengths] = at::tensor(counts.responses, at::kLong);
    for (const auto& [name, value] : metrics)
      if (!is_of_process(name)) out.metrics[name] = value;
    write_kept_step(KeptSteps::file_of(folder_, step + 1), context_.job, out, origin_of(context_),
                    {context_.total_steps, steps_per_epoch});
  });
}

Experience read_experience(Context& context, const KeptSteps& steps, std::int64_t step,
                           Metrics& metrics) {
  KeptStep kept;
  run_in_step(context.ranks, [&] {
    kept = read_kept_step(steps.file(step + 1), context.job, origin_of(context));
  });
  metrics.insert(kept.metrics.begin(), kept.metrics.end());
  Experience out;
  for (const spec::KeptTensor& tensor : spec::kept_tensors(context.job))
    if (at::Tensor* to = member_of(out, tensor.field)) *to = kept[tensor.field];
  const at::Tensor tokens = out.sequences.mask.sum(-1, false, at::kDouble);
  const parallel::RowDeal deal = deal_responses(context, out, metrics);
  transform_rows(out, [&](const at::Tensor& t) { return deal.pick(t); });
  const at::Tensor mask = out.sequences.mask;
  out.sequences = train::sequences_of(out.sequences.tokens, values_of(out.sequences.lengths),
                                      values_of(deal.pick(kept[KeptField::kResponseLengths])),
                                      sequence_shape(context));
  out.sequences.mask = mask;  // without rejected tokens
  out.batch_tokens = tokens;
  return out;
}

}  // namespace neap::rlhf

#include "spec/recipe/kept_experience.h"

#include <functional>
#include <numeric>

#include "spec/types/loss_kinds.h"
#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<KeptField> kFieldNames[] = {
    {"tokens", KeptField::kTokens},
    {"lengths", KeptField::kLengths},
    {"response_lengths", KeptField::kResponseLengths},
    {"mask", KeptField::kMask},
    {"scores", KeptField::kScores},
    {"advantages", KeptField::kAdvantages},
    {"old_log_probs", KeptField::kOldLogProbs},
    {"ref_log_probs", KeptField::kReferenceLogProbs},
    {"rollout_weights", KeptField::kRolloutWeights},
    {"noise", KeptField::kNoise},
    {"values", KeptField::kValues},
    {"returns", KeptField::kReturns},
};
static_assert(std::size(kFieldNames) == kKeptFields);

}  // namespace

std::string_view to_string(KeptField field) {
  return name_of(kFieldNames, field);
}

std::int64_t KeptTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<KeptTensor> kept_tensors(const Job& job) {
  const std::int64_t rows = job.sequences_per_step();
  std::vector<KeptTensor> out = {{KeptField::kTokens, {rows, job.max_sequence_length()}},
                                 {KeptField::kLengths, {rows}},
                                 {KeptField::kResponseLengths, {rows}},
                                 {KeptField::kScores, {rows}}};
  const auto add = [&](KeptField field, bool is_read) {
    if (is_read) out.push_back({field, {rows, job.data.max_response_length}});
  };
  add(KeptField::kMask, true);
  add(KeptField::kAdvantages, true);
  add(KeptField::kOldLogProbs, !job.old_log_probs_are_current());
  add(KeptField::kReferenceLogProbs, job.actor.use_kl_loss);
  add(KeptField::kRolloutWeights, job.algorithm.rollout_correction.weighs_batch());
  add(KeptField::kNoise, draws_tokens(job.actor.loss_mode));
  add(KeptField::kValues, job.has_critic());
  add(KeptField::kReturns, job.has_critic());
  return out;
}

Bytes kept_bytes(const Job& job) {
  constexpr std::int64_t kNumber = 4, kCount = 8;  // float32 or int32; int64
  std::int64_t sum = 0;
  for (const KeptTensor& tensor : kept_tensors(job))
    sum += (is_count(tensor.field) ? kCount : kNumber) * tensor.elements();
  return Bytes(static_cast<std::uint64_t>(sum));
}

}  // namespace neap::spec

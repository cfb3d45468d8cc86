// The tensors of kept experience (trainer.experience): everything that the updates of one step of
// ppo or grpo read, and the scores.
//
// Threads   values and stateless functions.
// Failure   none.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "spec/job/job.h"

namespace neap::spec {

enum class KeptField : std::uint8_t {
  kTokens,
  kLengths,
  kResponseLengths,
  kMask,
  kScores,
  kAdvantages,
  kOldLogProbs,
  kReferenceLogProbs,
  kRolloutWeights,
  kNoise,
  kValues,
  kReturns,
};
constexpr std::size_t kKeptFields = static_cast<std::size_t>(KeptField::kReturns) + 1;
/// Name of the tensor in a file.
[[nodiscard]] std::string_view to_string(KeptField field);

/// Whether its tensor counts tokens, as int64.
[[nodiscard]] constexpr bool is_count(KeptField field) {
  return field == KeptField::kLengths || field == KeptField::kResponseLengths;
}

struct KeptTensor {
  KeptField field = KeptField::kTokens;
  std::vector<std::int64_t> shape;  ///< of the whole batch
  [[nodiscard]] std::int64_t elements() const;
};
/// The tensors that a run of the job keeps, and that a run of the job needs to train from them.
[[nodiscard]] std::vector<KeptTensor> kept_tensors(const Job& job);
/// The bytes of one step.
[[nodiscard]] Bytes kept_bytes(const Job& job);

}  // namespace neap::spec

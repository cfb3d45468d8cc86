#include "plan/counting/batch_memory.h"

#include <algorithm>
#include <cstdint>

#include "spec/recipe/kept_experience.h"
#include "spec/types/loss_kinds.h"

namespace neap::plan {
namespace {

// Elements are float32 or int32.
constexpr std::int64_t kNumber = 4;
// Bytes per element of a metric: the masked values, the mask, and their float64 copy.
constexpr std::int64_t kMetric = 4 + 1 + 8;

class Batch {
 public:
  explicit Batch(const spec::Job& job)
      : job_(job),
        all_(job.sequences_per_step()),
        own_(job.rows_per_rank(job.main_model())),
        width_(job.max_sequence_length()),
        response_(job.data.max_response_length) {}

  // Sequences as generated and as reassigned, numbers of the reassigned rows, and numbers of all
  // rows.
  [[nodiscard]] std::int64_t with_advantages() const {
    const bool alone = own_ == all_;
    const bool moved = !alone && job_.trainer.balance_batch && job_.packs();
    const bool whole = job_.algorithm.use_kl_in_reward || job_.keeps_rollout_log_probs();
    std::int64_t of_all = job_.keeps_rollout_log_probs() + job_.has_critic();
    if (job_.computes_old_log_probs()) ++of_all;  // entropies
    if (whole) of_all += log_probs();
    if (!alone) ++of_all;  // masks
    const std::int64_t of_own = alone && whole ? 0 : log_probs() + (alone ? 0 : job_.has_critic());
    constexpr std::int64_t kRewardsAdvantagesReturns = 3;
    return (moved ? 2 : 1) * sequences() + of_own * numbers(own_) +
           (of_all + kRewardsAdvantagesReturns) * numbers(all_) + kMetric * all_ * response_;
  }
  // The reassigned rows, and their packed form for a model.
  [[nodiscard]] std::int64_t with_updates() const {
    if (!job_.packs()) return dealt();
    // Tokens with their positions; for responses rows, tokens and positions.
    const std::int64_t packed = kNumber * own_ * (2 * width_ + 3 * response_);
    return dealt() + packed + (read() + 1) * numbers(own_);
  }
  // The reassigned rows, and all rows as they are kept. With several ranks, positions and targets of
  // all rows are gathered with them.
  [[nodiscard]] std::int64_t with_kept() const {
    const std::int64_t gathered = own_ == all_ ? 0 : 2 * numbers(all_);
    return dealt() + static_cast<std::int64_t>(spec::kept_bytes(job_).count()) + gathered;
  }

 private:
  // Tensors that the updates read for each response token.
  [[nodiscard]] std::int64_t read() const {
    constexpr std::int64_t kAdvantagesReturns = 2;
    return log_probs() + job_.has_critic() + kAdvantagesReturns +
           job_.algorithm.rollout_correction.weighs_batch() +
           spec::draws_tokens(job_.actor.loss_mode);
  }
  [[nodiscard]] std::int64_t dealt() const { return sequences() + read() * numbers(own_); }
  // Includes a position and a target for each response token, and their mask.
  [[nodiscard]] std::int64_t sequences() const { return kNumber * own_ * (width_ + 3 * response_); }
  [[nodiscard]] std::int64_t numbers(std::int64_t rows) const { return kNumber * rows * response_; }
  // Log-probabilities of the actor's own pass, if the job has one, and of the reference.
  [[nodiscard]] std::int64_t log_probs() const {
    return job_.computes_old_log_probs() + job_.uses_reference();
  }

  const spec::Job& job_;
  std::int64_t all_, own_, width_, response_;
};

}  // namespace

Bytes batch_bytes(const spec::Job& job) {
  if (!job.trains_policy()) return {};
  const Batch batch(job);
  std::int64_t most = batch.with_updates();
  if (job.generates()) most = std::max(most, batch.with_advantages());
  if (job.keeps_experience() || job.reads_experience()) most = std::max(most, batch.with_kept());
  return Bytes(static_cast<std::uint64_t>(most));
}

}  // namespace neap::plan

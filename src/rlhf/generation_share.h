// Which prompts a rank answers where responses are generated, and what it has of the responses then.
//
// Rows of a batch are dealt to the ranks along the axis data. Those that divide sequences have the same rows and deal
// them on: each answers its share, and all have all responses. Where ranks generate otherwise than they train
// (spec::Job::generation_mesh), the prompts of all are dealt to those that divide a model there, and each rank gets the
// responses to its own rows. Only tokens that are there are sent.
//
// Threads   one at a time.   Failure   Error, as of a communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rlhf/experience.h"

namespace neap::rlhf {

class GenerationShare {
 public:
  /// `mine`: the prompts of this rank; others have as many. Every rank makes one.
  GenerationShare(const Context& context, const std::vector<train::Tokens>& mine);

  /// What this rank answers. Ranks answer as many; the last prompt may come again.
  [[nodiscard]] const std::vector<train::Tokens>& prompts() const { return prompts_; }
  /// Of each in the whole batch.
  [[nodiscard]] const std::vector<std::size_t>& places() const { return places_; }

  /// `answered`: `n` responses to each of these. Returns those to the prompts of this rank. Every rank calls it.
  [[nodiscard]] std::vector<rollout::Response> own_responses(
      std::vector<rollout::Response> answered, std::int64_t n) const;

 private:
  [[nodiscard]] std::int64_t parties() const { return among_.size() / party_; }

  parallel::Communicator& among_;  // those that answer
  std::int64_t party_;             // of them, those that answer one prompt together
  std::vector<train::Tokens> prompts_;
  std::vector<std::size_t> places_;
  std::vector<std::size_t> own_;  // this rank's among those of all
};

}  // namespace neap::rlhf

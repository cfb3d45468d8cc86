// Divides prompts among ranks for generation, and returns the responses to the ranks that need
// them.
//
// Rows of a batch are assigned to data-parallel ranks. Context-parallel ranks have the same rows:
// each answers a share of them, and all get all responses. If rollouts use another mesh
// (spec::Job::generation_mesh), the prompts of all ranks are divided among its tensor-parallel
// groups. Each rank gets the responses to its own rows. Only tokens before the padding are sent.
//
// Threads   one at a time.
// Failure   Error, as of a communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rlhf/experience/experience.h"

namespace neap::rlhf {

class GenerationShare {
 public:
  /// `mine` are this rank's prompts. All ranks have the same number. Every rank creates a share.
  GenerationShare(const Context& context, const std::vector<train::Tokens>& mine);

  /// The prompts that this rank answers. All ranks answer the same number, so the last prompt may
  /// be repeated.
  [[nodiscard]] const std::vector<train::Tokens>& prompts() const { return prompts_; }
  /// The place of each prompt in the whole batch.
  [[nodiscard]] const std::vector<std::size_t>& places() const { return places_; }

  /// `answered` has `n` responses per prompt of prompts(). Returns the responses to this rank's own
  /// prompts. Every rank calls it.
  [[nodiscard]] std::vector<rollout::Response> own_responses(
      std::vector<rollout::Response> answered, std::int64_t n) const;

 private:
  [[nodiscard]] std::int64_t parties() const { return among_.size() / party_; }

  parallel::Communicator& among_;  // the ranks that generate
  std::int64_t party_;             // ranks that answer a prompt together
  std::vector<train::Tokens> prompts_;
  std::vector<std::size_t> places_;
  std::vector<std::size_t> own_;  // places of this rank's prompts among all
};

}  // namespace neap::rlhf

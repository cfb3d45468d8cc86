// The tokens of a sequence that sampling penalties apply to.
//
// Threads   one at a time.
// Cost      a row for each sampled token.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "step/generation/sampling.h"

namespace neap::rollout {

/// The distinct tokens of a sequence, in order, with their counts in its response.
class SeenTokens {
 public:
  SeenTokens() = default;
  explicit SeenTokens(const std::vector<std::int64_t>& prompt) {
    for (const std::int64_t token : prompt) find(token);
  }
  void add_to_response(std::int64_t token) { ++counts_[find(token)]; }

  /// Appends a row of step::Draw.
  void append_to(const step::SamplingOptions& options, std::size_t width,
                 std::vector<std::int64_t>& seen, std::vector<float>& amounts) const {
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t at = i < tokens_.size() ? i : 0;
      const std::int64_t count = tokens_.empty() ? 0 : counts_[at];
      seen.push_back(tokens_.empty() ? 0 : tokens_[at]);
      amounts.push_back(
          count == 0 ? 0.0F
                     : static_cast<float>(options.presence_penalty +
                                          options.frequency_penalty * static_cast<double>(count)));
    }
  }

 private:
  std::size_t find(std::int64_t token) {
    const auto [it, is_new] = places_.try_emplace(token, tokens_.size());
    if (is_new) {
      tokens_.push_back(token);
      counts_.push_back(0);
    }
    return it->second;
  }
  std::unordered_map<std::int64_t, std::size_t> places_;
  std::vector<std::int64_t> tokens_, counts_;
};

}  // namespace neap::rollout

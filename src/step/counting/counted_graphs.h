// The graphs of a phase (step/generation/decode_graphs.h), as counting meets them.
//
// Threads   one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "step/counting/scratch_places.h"

namespace neap::step {

/// Counts the different graphs of a phase.
class CountedGraphs {
 public:
  void add(const GraphKey& key, std::uint64_t scratch, double kernels) {
    scratch_ = std::max(scratch_, scratch);
    kernels_ = std::max(kernels_, kernels);
    keys_.insert(key);
  }
  /// The largest scratch of a graph; graphs share it.
  [[nodiscard]] std::uint64_t scratch() const { return scratch_; }
  [[nodiscard]] std::size_t count() const { return keys_.size(); }
  /// The most of a graph.
  [[nodiscard]] double kernels() const { return kernels_; }

 private:
  std::uint64_t scratch_ = 0;
  double kernels_ = 0;
  std::set<GraphKey> keys_;
};

}  // namespace neap::step

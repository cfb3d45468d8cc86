// Contents that a move must restore, and regions like a model's weights. Internal to bench/.
#pragma once

#include <vector>

#include "arena/arena.h"
#include "bench/bench.h"

namespace neap::bench {

/// Sizes of 198 tensors of a 7B model, from norms to the embedding: 15.2 GB at full size.
[[nodiscard]] std::vector<Bytes> weight_sizes(const Bench& bench);

struct Weights {
  std::vector<arena::RegionInfo> regions;
  Bytes total;
};
[[nodiscard]] Result<Weights> create_weights(const Bench& bench, arena::Arena& arena,
                                             std::string_view tag, arena::Policy policy);

/// Random bytes in one buffer. Each region starts at a different offset of it.
class Contents {
 public:
  Contents(device::Device& device, Bytes piece);
  Status write(const std::vector<arena::RegionInfo>& regions);
  /// kCorrupt when a byte differs.
  Status check(const std::vector<arena::RegionInfo>& regions);

 private:
  template <class F>
  Status for_each_piece(const arena::RegionInfo& region, F&& visit);

  device::Device& device_;
  std::vector<std::uint64_t> words_, found_;
};

}  // namespace neap::bench

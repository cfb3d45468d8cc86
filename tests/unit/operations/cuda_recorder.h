// Requests to libtorch's CUDA allocator, as its own trace tells them.
#pragma once

#include <cstdint>
#include <vector>

namespace neap::testing {

/// From now on; needs bridge::torch_cuda().available.
void start_cuda_recording();
/// Bytes of each request; the negative of its bytes where it is given back.
[[nodiscard]] std::vector<std::int64_t> stop_cuda_recording();

/// What this thread asks for meanwhile is not recorded.
class Unrecorded {
 public:
  Unrecorded();
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;
  ~Unrecorded();
};

}  // namespace neap::testing

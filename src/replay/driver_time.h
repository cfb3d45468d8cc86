// Time of driver calls, from measurements on an H200 (docs/replay.md#figures).
#pragma once

#include "cache/sim_source.h"

namespace neap::replay {

/// A simulated device that adds up the time that a real driver would have taken.
class TimedSource : public cache::SimSource {
 public:
  using SimSource::SimSource;
  [[nodiscard]] double milliseconds() const { return milliseconds_; }

  [[nodiscard]] Result<cache::Address> allocate(Bytes size, cache::Stream stream,
                                                bool small_pool) override {
    // cudaMalloc takes 0.06 ms up to 20 MiB and 0.5 ms for 8 GiB.
    milliseconds_ += 0.06 + 0.055 * size.gib();
    return SimSource::allocate(size, stream, small_pool);
  }
  Status free(cache::Address at, Bytes size) override {
    // cudaFree takes 0.04 ms, and 5 ms for 8 GiB.
    milliseconds_ += 0.04 + 0.62 * size.gib();
    return SimSource::free(at, size);
  }
  Status map(cache::Address at, Bytes size) override {
    milliseconds_ += per_page(size, 0.061, 0.045);  // create, map and set access
    return SimSource::map(at, size);
  }
  Status unmap(cache::Address at, Bytes size) override {
    milliseconds_ += per_page(size, 0.039, 0.044);  // unmap and release
    return SimSource::unmap(at, size);
  }

 private:
  /// Pages have 20 MiB in the large pool and 2 MiB in the small one; the size tells which pool it
  /// is.
  static double per_page(Bytes size, double small, double large) {
    return is_multiple_of(size, 20_MiB) ? large * static_cast<double>(size / 20_MiB)
                                        : small * static_cast<double>(size / 2_MiB);
  }
  double milliseconds_ = 0;
};

}  // namespace neap::replay

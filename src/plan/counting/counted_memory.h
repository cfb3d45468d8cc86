// The pool of temporaries of a phase that is only counted: the caching allocator on a device
// without memory.
//
// Threads   one.
// Failure   status() has the first request that failed; later requests get address 0.
// Cost      about 100 ns per request.
#pragma once

#include <cstdint>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"
#include "step/counting/counting_ops.h"

namespace neap::plan {

class CountedMemory final : public step::MemorySink {
 public:
  explicit CountedMemory(const cache::Settings& settings);

  [[nodiscard]] std::uint64_t allocate(std::int64_t bytes) override;
  void release(std::uint64_t address) override;
  /// Frees the pages that no tensor uses, as a phase does at its end.
  void give_back();

  [[nodiscard]] Bytes peak_reserved() const { return allocator_.stats().peak_reserved; }
  [[nodiscard]] Bytes peak_allocated() const { return allocator_.stats().peak_allocated; }
  [[nodiscard]] Bytes allocated() const { return allocator_.stats().allocated; }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  cache::SimSource source_;
  cache::CachingAllocator allocator_;
  Status status_;
};

}  // namespace neap::plan

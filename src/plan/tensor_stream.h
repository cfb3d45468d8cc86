// The requests that a phase makes of its transient pool, made without the phase.
//
// Model     A Temporary stands for a tensor: it asks the allocator for its bytes when it is made
//           and gives them back when its last holder goes, as a tensor's storage does. Code that
//           mirrors a forward or backward pass with Temporaries therefore makes the same requests
//           in the same order, and the caching allocator under it answers what it would answer then.
// Cost      about 100 ns a temporary.
// Failure   the first failing request stops the stream; status() has it.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/caching_allocator.h"
#include "cache/sim_source.h"

namespace neap::plan {

/// Shared ownership of one allocation, like a tensor's. Empty: no tensor.
using Temporary = std::shared_ptr<const void>;

class TensorStream {
 public:
  explicit TensorStream(const cache::Settings& settings);
  TensorStream(const TensorStream&) = delete;
  TensorStream& operator=(const TensorStream&) = delete;

  /// A tensor of `elements` of `width` bytes; none when it is empty, as libtorch does.
  [[nodiscard]] Temporary make(std::int64_t elements, std::uint64_t width);
  /// One that is gone at once: a result that is read and thrown away.
  void touch(std::int64_t elements, std::uint64_t width) { (void)make(elements, width); }

  [[nodiscard]] Bytes peak_reserved() const { return allocator_->stats().peak_reserved; }
  [[nodiscard]] Bytes peak_allocated() const { return allocator_->stats().peak_allocated; }
  [[nodiscard]] Bytes allocated() const { return allocator_->stats().allocated; }
  [[nodiscard]] const Status& status() const { return *failure_; }

  /// Told of every request in order, for tests that compare with a recorded run.
  using Observer = void (*)(void* context, Bytes requested);
  void observe(Observer observer, void* context) {
    observer_ = observer;
    observer_context_ = context;
  }

 private:
  // Temporaries may outlive the stream by the order in which a scope's locals die.
  std::shared_ptr<cache::SimSource> source_;
  std::shared_ptr<cache::CachingAllocator> allocator_;
  std::shared_ptr<Status> failure_;
  Observer observer_ = nullptr;
  void* observer_context_ = nullptr;
};

}  // namespace neap::plan

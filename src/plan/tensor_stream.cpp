#include "plan/tensor_stream.h"

namespace neap::plan {

TensorStream::TensorStream(const cache::Settings& settings)
    : source_(std::make_shared<cache::SimSource>(Bytes(1ull << 46))),
      failure_(std::make_shared<Status>()) {
  cache::CacheOptions options;
  options.settings = settings;
  options.locking = cache::LockPolicy::kNone;
  // The allocator refers to the source: they live and die together.
  allocator_ = std::shared_ptr<cache::CachingAllocator>(
      new cache::CachingAllocator(*source_, options),
      [source = source_](cache::CachingAllocator* a) { delete a; });
}

Temporary TensorStream::make(std::int64_t elements, std::uint64_t width) {
  if (elements <= 0 || !failure_->ok()) return {};
  const Bytes size(static_cast<std::uint64_t>(elements) * width);
  if (observer_ != nullptr) observer_(observer_context_, size);
  const Result<cache::Address> at = allocator_->malloc(size);
  if (!at.ok()) {
    *failure_ = at.status();
    return {};
  }
  return {reinterpret_cast<const void*>(*at),  // NOLINT(performance-no-int-to-ptr): an address
          [allocator = allocator_, failure = failure_](const void* p) {
            Status status = allocator->free(reinterpret_cast<cache::Address>(p));
            if (!status.ok() && failure->ok()) *failure = std::move(status);
          }};
}

}  // namespace neap::plan

#include "plan/counting/counted_memory.h"

namespace neap::plan {
namespace {

cache::CacheOptions options_of(const cache::Settings& settings) {
  cache::CacheOptions options;
  options.settings = settings;
  options.locking = cache::LockPolicy::kNone;
  return options;
}

}  // namespace

CountedMemory::CountedMemory(const cache::Settings& settings)
    : source_(Bytes(1ull << 46)), allocator_(source_, options_of(settings)) {}

std::uint64_t CountedMemory::allocate(std::int64_t bytes) {
  if (!status_.ok()) return 0;
  const Result<cache::Address> at = allocator_.malloc(Bytes(static_cast<std::uint64_t>(bytes)));
  if (at.ok()) return *at;
  status_ = at.status();
  return 0;
}

void CountedMemory::release(std::uint64_t address) {
  if (address == 0) return;
  Status status = allocator_.free(address);
  if (!status.ok() && status_.ok()) status_ = std::move(status);
}

void CountedMemory::give_back() {
  Status status = allocator_.empty_cache();
  if (!status.ok() && status_.ok()) status_ = std::move(status);
  allocator_.reset_peaks();
}

}  // namespace neap::plan

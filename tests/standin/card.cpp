#include "card.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace neap::standin {
namespace {

/// "NAME:K" or "NAME:K:RESULT" in NEAP_STANDIN_FAIL makes the K-th call of NAME fail.
struct Wish {
  std::string name;
  int nth = 0, result = kOutOfMemory;
};
Wish wish_from_environment() {
  Wish wish;
  const char* text = std::getenv("NEAP_STANDIN_FAIL");
  if (text == nullptr) return wish;
  const std::string whole = text;
  const auto first = whole.find(':');
  if (first == std::string::npos) return wish;
  wish.name = whole.substr(0, first);
  char* end = nullptr;
  wish.nth = static_cast<int>(std::strtol(whole.c_str() + first + 1, &end, 10));
  if (*end == ':') wish.result = static_cast<int>(std::strtol(end + 1, nullptr, 10));
  return wish;
}

}  // namespace

int& current_device() {
  static thread_local int device = -1;
  return device;
}

Card& Card::get() {
  static auto* card = new Card();  // never destroyed: callers may outlive static destruction
  return *card;
}

Card::Card() {
  const char* bytes = std::getenv("NEAP_STANDIN_BYTES");
  capacity_ = bytes != nullptr ? std::strtoull(bytes, nullptr, 10) : (std::size_t{4} << 30);
  if (const char* count = std::getenv("NEAP_STANDIN_DEVICES")) device_count_ = std::atoi(count);
  const Wish wish = wish_from_environment();
  if (wish.nth > 0) failures_[wish.name] = {wish.nth, wish.result};
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int Card::init() {
  std::lock_guard lock(mutex_);
  if (owner_process_ != 0 && owner_process_ != getpid()) return kNotInitialized;
  owner_process_ = getpid();
  return kSuccess;
}

int Card::enter(const char* name, bool needs_context) {
  std::lock_guard lock(mutex_);
  ++calls_;
  if (owner_process_ != getpid()) return kNotInitialized;
  if (const auto it = failures_.find(name); it != failures_.end() && --it->second.first == 0) {
    const int result = it->second.second;
    failures_.erase(it);
    return result;
  }
  if (needs_context && current_device() < 0) return kInvalidContext;
  return kSuccess;
}

void Card::fail(const std::string& name, int nth_call, int result) {
  std::lock_guard lock(mutex_);
  if (nth_call <= 0) {
    failures_.erase(name);
  } else {
    failures_[name] = {nth_call, result};
  }
}

std::size_t Card::free_bytes(int device) {
  std::lock_guard lock(mutex_);
  return capacity_ - std::min(capacity_, used_[device]);
}

int Card::reserve(std::uint64_t* at, std::size_t size, std::size_t alignment) {
  std::lock_guard lock(mutex_);
  if (at == nullptr || size == 0 || size % kGranularity != 0) return kInvalidValue;
  const std::size_t align = std::max(alignment, kGranularity);
  if ((align & (align - 1)) != 0) return kInvalidValue;
  const std::size_t whole = size + align;
  void* raw = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return kOutOfMemory;
  const auto begin = reinterpret_cast<std::uint64_t>(raw);
  const std::uint64_t start = (begin + align - 1) / align * align;
  if (start > begin) munmap(raw, start - begin);
  if (begin + whole > start + size) {
    munmap(pointer(start + size), begin + whole - start - size);
  }
  reservations_[start] = size;
  *at = start;
  return kSuccess;
}

int Card::unreserve(std::uint64_t at, std::size_t size) {
  std::lock_guard lock(mutex_);
  const auto it = reservations_.find(at);
  if (it == reservations_.end() || it->second != size) return kInvalidValue;
  const auto mapping = mappings_.lower_bound(at);
  if (mapping != mappings_.end() && mapping->first < at + size) return kInvalidValue;
  munmap(pointer(at), size);
  reservations_.erase(it);
  return kSuccess;
}

int Card::create(std::uint64_t* handle, std::size_t size, const AllocationProperties* properties) {
  std::lock_guard lock(mutex_);
  if (handle == nullptr || properties == nullptr || size == 0 || size % kGranularity != 0 ||
      properties->type != 1 || properties->location.type != 1) {
    return kInvalidValue;
  }
  const int device = properties->location.id;
  if (device < 0 || device >= device_count_) return kInvalidDevice;
  if (used_[device] + size > capacity_) return kOutOfMemory;
  const int descriptor = memfd_create("standin-page", MFD_CLOEXEC);
  if (descriptor < 0) return kOutOfMemory;
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0) {
    close(descriptor);
    return kOutOfMemory;
  }
  used_[device] += size;
  *handle = next_id_++;
  const bool exportable = (properties->requested_handle & 1) != 0;
  handles_[*handle] = {descriptor, size, device, 1, true, false, exportable};
  return kSuccess;
}

void Card::drop_claim(std::uint64_t handle) {
  auto& page = handles_.at(handle);
  if (--page.claims > 0) return;
  close(page.descriptor);
  if (!page.imported) used_[page.device] -= page.size;
  handles_.erase(handle);
}

int Card::release(std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto it = handles_.find(handle);
  if (it == handles_.end() || !it->second.owned) return kInvalidValue;
  it->second.owned = false;
  drop_claim(handle);
  return kSuccess;
}

int Card::retain_at(std::uint64_t* handle, std::uint64_t at) {
  std::lock_guard lock(mutex_);
  auto it = mappings_.upper_bound(at);
  if (handle == nullptr || it == mappings_.begin()) return kInvalidValue;
  --it;
  if (at >= it->first + it->second.size) return kInvalidValue;
  auto& page = handles_.at(it->second.handle);
  if (page.owned) return kNotSupported;  // the stand-in tracks one owner
  page.owned = true;
  ++page.claims;
  *handle = it->second.handle;
  return kSuccess;
}

int Card::map(std::uint64_t at, std::size_t size, std::size_t offset, std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto page = handles_.find(handle);
  if (page == handles_.end() || offset != 0 || size != page->second.size) return kInvalidValue;
  auto range = reservations_.upper_bound(at);
  if (at % kGranularity != 0 || range == reservations_.begin()) return kInvalidValue;
  --range;
  if (at + size > range->first + range->second) return kInvalidValue;
  auto next = mappings_.lower_bound(at);
  if (next != mappings_.end() && next->first < at + size) return kInvalidValue;
  if (next != mappings_.begin()) {
    --next;
    if (next->first + next->second.size > at) return kInvalidValue;
  }
  if (mmap(pointer(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, page->second.descriptor, 0) ==
      MAP_FAILED) {
    return kOutOfMemory;
  }
  mappings_[at] = {size, handle, 0};
  ++page->second.claims;
  return kSuccess;
}

int Card::set_access(std::uint64_t at, std::size_t size, const AccessDescriptor* list,
                     std::size_t n) {
  std::lock_guard lock(mutex_);
  if (list == nullptr || n == 0 || size == 0) return kInvalidValue;
  const auto granted = [&](std::uint64_t users) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t bit = std::uint64_t{1} << list[i].location.id;
      users = list[i].flags == 3 ? users | bit : users & ~bit;
    }
    return users;
  };
  for (std::size_t i = 0; i < n; ++i) {
    const bool known = list[i].location.id >= 0 && list[i].location.id < device_count_;
    if (list[i].location.type != 1 || !known) return kInvalidDevice;
    if (list[i].flags != 0 && list[i].flags != 3) return kInvalidValue;
  }
  std::uint64_t next = at;
  for (auto it = mappings_.find(at); next < at + size; ++it) {
    if (it == mappings_.end() || it->first != next) return kInvalidValue;
    next += it->second.size;
  }
  if (next != at + size) return kInvalidValue;
  for (auto it = mappings_.find(at); it != mappings_.end() && it->first < at + size; ++it) {
    it->second.users = granted(it->second.users);
    if (mprotect(pointer(it->first), it->second.size,
                 it->second.users != 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
      return kUnknown;
    }
  }
  return kSuccess;
}

int Card::unmap(std::uint64_t at, std::size_t size) {
  std::lock_guard lock(mutex_);
  std::uint64_t next = at;
  for (auto it = mappings_.find(at); next < at + size; ++it) {
    if (it == mappings_.end() || it->first != next) return kInvalidValue;
    next += it->second.size;
  }
  if (size == 0 || next != at + size) return kInvalidValue;
  if (mmap(pointer(at), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED) {
    return kUnknown;
  }
  for (auto it = mappings_.find(at); it != mappings_.end() && it->first < at + size;) {
    drop_claim(it->second.handle);
    it = mappings_.erase(it);
  }
  return kSuccess;
}

int Card::export_handle(int* descriptor, std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto it = handles_.find(handle);
  if (descriptor == nullptr || it == handles_.end() || !it->second.exportable) return kInvalidValue;
  const int copy = dup(it->second.descriptor);
  if (copy < 0) return kUnknown;
  *descriptor = copy;
  return kSuccess;
}

int Card::import_handle(std::uint64_t* handle, int descriptor) {
  std::lock_guard lock(mutex_);
  struct stat about {};
  if (handle == nullptr || fstat(descriptor, &about) != 0 || about.st_size == 0) {
    return kInvalidValue;
  }
  const int copy = dup(descriptor);
  if (copy < 0) return kUnknown;
  const auto size = static_cast<std::size_t>(about.st_size);
  *handle = next_id_++;
  handles_[*handle] = {copy, size, 0, 1, true, true, true};
  return kSuccess;
}

int Card::allocate(std::uint64_t* at, std::size_t size, int device) {
  std::lock_guard lock(mutex_);
  if (at == nullptr) return kInvalidValue;
  const std::size_t whole =
      std::max<std::size_t>((size + kGranularity - 1) / kGranularity, 1) * kGranularity;
  if (used_[device] + whole > capacity_) return kOutOfMemory;
  void* raw = mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return kOutOfMemory;
  used_[device] += whole;
  *at = reinterpret_cast<std::uint64_t>(raw);
  plain_[*at] = {whole, device};
  return kSuccess;
}

int Card::deallocate(std::uint64_t at) {
  std::lock_guard lock(mutex_);
  const auto it = plain_.find(at);
  if (it == plain_.end()) return kInvalidValue;
  munmap(pointer(at), it->second.size);
  used_[it->second.device] -= it->second.size;
  plain_.erase(it);
  return kSuccess;
}

int Card::device_of(std::uint64_t at, int* device) {
  std::lock_guard lock(mutex_);
  if (auto it = plain_.upper_bound(at); it != plain_.begin()) {
    --it;
    if (at < it->first + it->second.size) {
      *device = it->second.device;
      return kSuccess;
    }
  }
  if (auto it = mappings_.upper_bound(at); it != mappings_.begin()) {
    --it;
    if (at < it->first + it->second.size) {
      *device = handles_.at(it->second.handle).device;
      return kSuccess;
    }
  }
  return kInvalidValue;
}

bool Card::is_device_address(std::uint64_t at) {
  std::lock_guard lock(mutex_);
  const auto within = [at](const auto& table, auto size_of) {
    auto it = table.upper_bound(at);
    if (it == table.begin()) return false;
    --it;
    return at < it->first + size_of(it->second);
  };
  return within(plain_, [](const Plain& p) { return p.size; }) ||
         within(reservations_, [](std::size_t size) { return size; });
}

bool Card::reachable(std::uint64_t at, std::size_t size, std::uint64_t users) {
  if (auto it = plain_.upper_bound(at); it != plain_.begin()) {
    --it;
    if (at + size <= it->first + it->second.size) return true;
  }
  auto it = mappings_.upper_bound(at);
  if (it == mappings_.begin()) return false;
  --it;
  for (std::uint64_t next = at; next < at + size; ++it) {
    if (it == mappings_.end() || it->first > next || next >= it->first + it->second.size ||
        (it->second.users & users) == 0) {
      return false;
    }
    next = it->first + it->second.size;
  }
  return true;
}

Live Card::live() {
  std::lock_guard lock(mutex_);
  Live live{};
  live.handles = handles_.size();
  for (const auto& [id, page] : handles_) live.handle_bytes += page.size;
  live.reservations = reservations_.size();
  for (const auto& [at, size] : reservations_) live.reserved_bytes += size;
  live.mappings = mappings_.size();
  live.plain_allocations = plain_.size();
  for (const auto& [at, block] : plain_) live.plain_bytes += block.size;
  live.streams = streams_.size();
  live.events = events_.size();
  live.registrations = registered_.size();
  live.calls = calls_;
  return live;
}

}  // namespace neap::standin

#include "arena/host_storage.h"

#include <mutex>

#include "arena/arena_impl.h"
#include "base/format.h"

namespace neap::arena {

class HostStorage::Memory {
 public:
  Memory(Arena::Impl& arena, Tag& tag, HostBuffer buffer, Bytes bytes)
      : at(buffer.at), size(bytes), arena_(arena), tag_(tag), buffer_(buffer) {
    const std::unique_lock lock(arena_.table);
    tag_.storage += size;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (!arena_.check_process().ok()) return;
    arena_.hosts.give(buffer_);
    arena_.hosts.release_free(&tag_);
    const std::unique_lock lock(arena_.table);
    tag_.storage -= size;
  }
  std::byte* const at;
  const Bytes size;

 private:
  Arena::Impl& arena_;
  Tag& tag_;
  HostBuffer buffer_;
};

namespace {

Tag& tag_of(Arena::Impl& arena, std::string_view name) {
  const std::unique_lock lock(arena.table);
  return arena.tag_named(name);
}

}  // namespace

Bytes HostStorage::taken(std::span<const Bytes> sizes) {
  return HostPool::block_bytes(sizes);
}

Status HostStorage::reserve(Arena& owner, std::string_view name, std::span<const Bytes> sizes) {
  Arena::Impl& arena = owner.impl();
  NEAP_TRY(arena.check_process());
  return arena.hosts.reserve(sizes, &tag_of(arena, name))
      .with_context(format("taking {} of host storage for {}", taken(sizes), name));
}

Result<std::unique_ptr<HostStorage>> HostStorage::make(Arena& owner, std::string_view name,
                                                       Bytes size) {
  Arena::Impl& arena = owner.impl();
  NEAP_TRY(arena.check_process());
  if (size.is_zero())
    return Status(ErrorCode::kInvalidArgument, format("host storage of 0 bytes for {}", name));
  Tag& tag = tag_of(arena, name);
  const auto what = [&] { return format("taking {} of host storage for {}", size, name); };
  Result<HostBuffer> buffer = arena.hosts.take(size, size, &tag);
  if (!buffer.ok()) return Status(buffer.status()).with_context(what());
  auto memory = std::make_shared<Memory>(arena, tag, *buffer, size);
  if (Status ready = arena.hosts.ready({*buffer}).wait(buffer->at, size); !ready.ok())
    return std::move(ready).with_context(what());
  return std::unique_ptr<HostStorage>(new HostStorage(std::move(memory)));
}

std::byte* HostStorage::data() const {
  return memory_->at;
}
Bytes HostStorage::size() const {
  return memory_->size;
}

}  // namespace neap::arena

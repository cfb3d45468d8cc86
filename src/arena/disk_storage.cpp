#include "arena/disk_storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "arena/arena_impl.h"
#include "base/format.h"

namespace neap::arena {

DiskStorage::DiskStorage(Arena& arena, Tag& tag, std::shared_ptr<DiskFile> file, std::byte* data,
                         Bytes size)
    : arena_(arena), tag_(tag), file_(std::move(file)), data_(data), size_(size) {
  const std::unique_lock lock(arena_.impl().table);
  tag_.disk_storage += size_;
}

DiskStorage::~DiskStorage() {
  ::munmap(data_, file_->size().count());
  if (!arena_.impl().check_process().ok()) return;
  const std::unique_lock lock(arena_.impl().table);
  tag_.disk_storage -= size_;
}

Result<std::unique_ptr<DiskStorage>> DiskStorage::make(Arena& owner, std::string_view name,
                                                       Bytes size) {
  Arena::Impl& arena = owner.impl();
  NEAP_TRY(arena.check_process());
  if (size.is_zero())
    return Status(ErrorCode::kInvalidArgument, format("disk storage of 0 bytes for {}", name));
  std::string folder;
  Tag* tag = nullptr;
  {
    const std::unique_lock lock(arena.table);
    tag = &arena.tag_named(name);
    folder = arena.disk_folder;
  }
  const auto what = [&] { return format("taking {} of disk storage for {}", size, name); };
  auto file = DiskFile::make(folder, round_up(size, DiskFile::kPage));
  if (!file.ok()) return Status(file.status()).with_context(what());
  Result<std::byte*> data = (*file)->map((*file)->size());
  if (!data.ok()) return Status(data.status()).with_context(what());
  return std::unique_ptr<DiskStorage>(new DiskStorage(owner, *tag, std::move(*file), *data, size));
}

Status DiskStorage::settle() const {
  NEAP_TRY(file_->write_back());
  // Direct writes bypass the mapped pages, so these must be read again.
  ::madvise(data_, file_->size().count(), MADV_DONTNEED);
  return {};
}

Status DiskLane::Batch::wait() {
  Status first;
  for (std::future<Status>& piece : std::exchange(pieces_, {})) {
    if (Status done = piece.get(); first.ok() && !done.ok()) first = std::move(done);
  }
  return first;
}

template <class Transfer>
DiskLane::Batch DiskLane::begin(std::span<const DiskRange> ranges, const Transfer& transfer) {
  if (!workers_) workers_.emplace(std::numeric_limits<std::size_t>::max());
  Batch batch;
  for (const DiskRange& range : ranges) {
    // Cut between pages of the file, so that no two threads write one page.
    for (Bytes at; at < range.size;) {
      const Bytes offset = range.offset + at;
      const Bytes size = std::min(range.size - at, round_up(offset + 1_B, kDiskPiece) - offset);
      batch.pieces_.push_back(
          workers_->run([&file = *range.file, offset, memory = range.memory + at.count(), size,
                         transfer] { return transfer(file, offset, memory, size); }));
      at += size;
    }
  }
  return batch;
}

DiskLane::Batch DiskLane::read(std::span<const DiskRange> ranges) {
  return begin(ranges, [](const DiskFile& file, Bytes offset, std::byte* to, Bytes size) {
    return file.read_part(offset, to, size);
  });
}

DiskLane::Batch DiskLane::write(std::span<const DiskRange> ranges) {
  return begin(ranges, [](const DiskFile& file, Bytes offset, std::byte* from, Bytes size) {
    return file.write_part(offset, from, size);
  });
}

}  // namespace neap::arena

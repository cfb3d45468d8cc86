// Regions that are paused in a move: collecting them, space for their contents, commit and undo.
#include <algorithm>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

void leave_slots(const TransferChunk& chunk) {
  Address at = chunk.at;
  for (const Bytes size : chunk.sizes) {
    chunk.tag->slots.erase(at);
    at += size.count();
  }
}

}  // namespace

Outgoing gather_out(Arena::Impl& arena, const std::vector<Tag*>& tags,
                    const PauseOptions& options) {
  Outgoing out;
  for (Tag* tag : tags) {
    std::vector<std::pair<Address, Page>> slots;
    bool any_copy = false;
    bool any = false;
    const Staying stay = staying(*tag);
    for (auto& [block, region] : tag->blocks) {
      if (region->state != State::kResident || stay.regions.contains(region)) continue;
      Outgoing::Item item;
      item.region = region;
      item.policy = options.policy.value_or(region->policy);
      const bool same = region->backup.filled && region->backup.parts == region->parts;
      item.copy = keeps_contents(item.policy) && !region->parts.empty() &&
                  !(options.unchanged && same && item.policy == Policy::kHost);
      any_copy = any_copy || item.copy;
      any = true;
      item.info = arena.describe(*region);
      out.items.push_back(std::move(item));
      region->state = State::kPausing;
    }
    if (!any) continue;
    for (const auto& [at, page] : tag->slots)
      if (!stay.slots.contains(at)) slots.emplace_back(at, page);
    const Bytes uncopied = options.release_pages ? arena.sizes.creating : Bytes(0);
    auto chunks = cut_chunks(*tag, slots, any_copy ? arena.chunk_size : uncopied);
    for (TransferChunk& chunk : chunks) {
      chunk.mapped = chunk.pages.size();
      out.chunks.push_back(std::move(chunk));
    }
  }
  return out;
}

namespace {

/// Takes host buffers for contents that are kept on the host, and adds their copies.
Status secure_host(Arena::Impl& arena, Outgoing& out) {
  std::map<const Tag*, Bytes> need;
  for (const auto& item : out.items) {
    if (item.copy && item.policy == Policy::kHost)
      need[item.region->tag] += total(item.region->parts);
  }
  std::vector<HostBuffer> buffers;
  std::vector<Span> spans;
  std::vector<Span> kept;
  for (auto& item : out.items) {
    if (item.policy != Policy::kHost) continue;
    const Bytes size = total(item.region->parts);
    Backup& own = item.region->backup;
    if (!item.copy) {
      if (!own.filled) continue;
      const auto own_spans = spans_of(*item.region, own);
      kept.insert(kept.end(), own_spans.begin(), own_spans.end());
      continue;
    }
    // The buffer of the last pause or of prepare(). Its contents are invalid from here on. Only
    // this move touches it, because the tag is marked as moving.
    HostBuffer small;
    {
      const std::unique_lock lock(arena.table);
      own.filled = false;
      if (own.host.size < size) small = std::exchange(own.host, {});
    }
    arena.hosts.give(small);
    item.backup.parts = item.region->parts;
    Bytes& expect = need[item.region->tag];
    if (own.host.size >= size) {
      item.backup.host = own.host;
    } else {
      const auto take = [&] { return arena.hosts.take(size, expect, item.region->tag); };
      auto taken = take();
      while (!taken.ok() && taken.status().code() == ErrorCode::kOutOfHostMemory &&
             arena.release_kept_buffers())
        taken = take();
      if (!taken.ok()) return taken.status();
      item.backup.host = *taken;
      item.took_host = true;
    }
    expect -= size;
    buffers.push_back(item.backup.host);
    const auto own_spans = spans_of(*item.region, item.backup);
    spans.insert(spans.end(), own_spans.begin(), own_spans.end());
    out.copied += size;
  }
  sort_spans(spans);
  attach_copies(out.chunks, spans, arena.hosts);
  sort_spans(kept);
  attach_copies(out.chunks, kept, arena.hosts, &TransferChunk::kept);
  out.readying = arena.hosts.ready(buffers);
  return {};
}

/// Makes files for contents that are kept on disk, and adds their copies.
Status secure_disk(Arena::Impl& arena, Outgoing& out) {
  std::string folder;
  {
    const std::shared_lock lock(arena.table);
    folder = arena.disk_folder;
  }
  const bool named = arena.options.named_disk_files;
  const auto make = [&](Bytes size) {
    const auto naming = named ? DiskFile::Naming::kNamed : DiskFile::Naming::kUnnamed;
    auto made = DiskFile::make(folder, size, naming);
    if (made.ok()) return made;
    arena.closer.wait();  // files that are being closed may hold the missing space
    return DiskFile::make(folder, size, naming);
  };
  Bytes need;
  for (const auto& item : out.items)
    if (item.copy && item.policy == Policy::kDisk) need += total(item.region->parts);
  if (need.is_zero()) return {};
  std::shared_ptr<DiskFile> common;
  if (!named) {
    NEAP_TRY_ASSIGN(common, make(need));
  }
  Bytes offset;  // in the shared file
  for (auto& item : out.items) {
    if (!item.copy || item.policy != Policy::kDisk) continue;
    const Bytes size = total(item.region->parts);
    item.backup.parts = item.region->parts;
    item.backup.file = common;
    item.backup.file_offset = offset;
    const auto& own = item.region->backup.file;
    if (named && own != nullptr && own->size() >= size) item.backup.file = own;
    if (item.backup.file == nullptr) {
      NEAP_TRY_ASSIGN(item.backup.file, make(size));
    }
    Bytes at = item.backup.file_offset;
    for (const Part& part : item.backup.parts) {
      out.disk.push_back(
          {item.region->address + part.offset.count(), item.backup.file, at, part.size});
      at += part.size;
    }
    if (!named) offset += size;
  }
  out.copied += need;
  return {};
}

}  // namespace

Status secure(Arena::Impl& arena, Outgoing& out) {
  // Secure disk space first: the disk may be full, and host memory starts to be allocated in the
  // background after this.
  NEAP_TRY(secure_disk(arena, out));
  return secure_host(arena, out);
}

void commit(Arena::Impl& arena, Outgoing& out) {
  for (const TransferChunk& chunk : out.chunks) leave_slots(chunk);
  for (auto& item : out.items) {
    Region& region = *item.region;
    region.state = State::kPaused;
    region.policy = item.policy;
    if (item.copy) {
      if (item.took_host || item.policy == Policy::kDisk) arena.hosts.give(region.backup.host);
      if (region.backup.file != nullptr && region.backup.file != item.backup.file)
        out.replaced.push_back({0, std::move(region.backup.file), Bytes(0), Bytes(0)});
      region.backup = std::move(item.backup);
      region.backup.filled = true;
    } else if (item.policy != Policy::kHost || region.parts.empty()) {
      region.backup.filled = false;
      if (!arena.keep_host_buffers) arena.hosts.give(std::exchange(region.backup.host, {}));
    }
  }
  for (const TransferChunk& chunk : out.chunks) arena.reclaim(*chunk.tag, chunk.at, chunk.size);
}

namespace {

/// Gives new pages to chunks that were released early, and restores the contents that the host has.
/// Contents that were to be discarded are undefined. A chunk that gets no pages is lost.
void renew(Arena::Impl& arena, Outgoing& out) {
  std::vector<TransferChunk*> renewed;
  for (TransferChunk& chunk : out.chunks)
    if (chunk.released) renewed.push_back(&chunk);
  if (renewed.empty()) return;
  const bool copies = std::any_of(renewed.begin(), renewed.end(), [](const TransferChunk* chunk) {
    return !chunk->copies.empty() || !chunk->kept.empty();
  });
  QueueLease queue(arena);
  Status status = copies ? queue.take() : Status();
  for (TransferChunk* chunk : renewed) {
    if (status.ok()) {
      auto pages = arena.store.take_all(chunk->sizes);
      status = pages.ok() ? Status() : Status(pages.status());
      if (pages.ok()) chunk->pages = std::move(*pages);
    }
    if (status.ok()) status = map_chunk(arena, *chunk);
    if (status.ok() && copies) status = copy_in(*chunk, queue.get());
    for (const device::Copy& copy : chunk->kept)
      if (status.ok()) status = queue.get().to_device(copy);
  }
  if (status.ok() && copies) status = queue.get().drain();
  if (!status.ok()) log::error(format("restoring a paused range: {}", status.message()));
}

/// Whether a part of the region is in the chunk.
bool touches(const TransferChunk& chunk, const Region& region) {
  return chunk.at < region.address + region.size.count() &&
         region.address < chunk.at + chunk.size.count();
}

}  // namespace

void undo(Arena::Impl& arena, Outgoing& out) {
  out.readying.finish();
  renew(arena, out);
  std::vector<Page> pages;
  std::vector<TransferChunk*> lost;
  for (TransferChunk& chunk : out.chunks) {
    if (chunk.mapped != 0) continue;
    Status status = chunk.released
                        ? Status(ErrorCode::kOutOfDeviceMemory, "its pages were released")
                        : map_chunk(arena, chunk);
    if (!status.ok() && !chunk.released) status = map_chunk(arena, chunk);
    if (status.ok()) continue;
    if (chunk.mapped == 0) lost.push_back(&chunk);
    log::error(format("{} at {:#x} could not be mapped again and are given up, as by shrink: {}",
                      chunk.size, chunk.at, status.message()));
  }
  {
    const std::unique_lock lock(arena.table);
    for (auto& item : out.items) {
      item.region->state = State::kResident;
      if (item.took_host) arena.hosts.give(item.backup.host);
      for (const TransferChunk* chunk : lost)
        if (touches(*chunk, *item.region)) remove_part(*item.region, chunk->at, chunk->size);
      if (std::any_of(out.chunks.begin(), out.chunks.end(), [&](const TransferChunk& chunk) {
            return chunk.released && touches(chunk, *item.region);
          }))
        item.info.generation = ++item.region->generation;
    }
    for (TransferChunk& chunk : out.chunks)
      if (chunk.released && chunk.mapped != 0) enter_slots({chunk});
    for (TransferChunk* chunk : lost) {
      leave_slots(*chunk);
      arena.reclaim(*chunk->tag, chunk->at, chunk->size);
      pages.insert(pages.end(), chunk->pages.begin(), chunk->pages.end());
      chunk->pages.clear();
    }
  }
  arena.store.give(pages);
}

}  // namespace neap::arena

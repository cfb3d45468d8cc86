// The two halves of a move: collecting and committing what leaves, and what comes.
#include <algorithm>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

// From the first resume on, regions under this size share pages with adjacent regions of the same tag.
// They move together anyway, and the number of handles determines the cost.
constexpr Bytes kSmallRegion = 256_MiB;

PageUse page_use(const Region& region) {
  if (region.size < kSmallRegion) return PageUse::kShared;
  if (keeps_contents(region.policy)) return PageUse::kCopied;
  return region.generation == 0 ? PageUse::kFirst : PageUse::kAgain;
}

std::vector<Span> spans_of(const Region& region, const Backup& backup) {
  std::vector<Span> spans;
  std::uint64_t place = backup.file != nullptr ? backup.file_offset.count()
                                               : reinterpret_cast<std::uint64_t>(backup.host.at);
  for (const Part& part : backup.parts) {
    spans.push_back({region.address + part.offset.count(), place, part.size});
    place += part.size.count();
  }
  return spans;
}

/// Drops what the region no longer maps: a paused region may have shrunk.
void clip(const Region& region, std::vector<Span>& spans) {
  std::vector<Span> kept;
  for (const Span& span : spans) {
    for (const Part& part : region.parts) {
      const Address from = std::max(span.at, region.address + part.offset.count());
      const Address to =
          std::min(span.at + span.size.count(), region.address + (part.offset + part.size).count());
      if (from < to) kept.push_back({from, span.place + (from - span.at), Bytes(to - from)});
    }
  }
  spans = std::move(kept);
}

void sort_spans(std::vector<Span>& spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.at < b.at; });
}

void leave_slots(const TransferChunk& chunk) {
  Address at = chunk.at;
  for (const Bytes size : chunk.sizes) {
    chunk.tag->slots.erase(at);
    at += size.count();
  }
}

}  // namespace

bool keeps_contents(Policy policy) {
  return policy == Policy::kHost || policy == Policy::kDisk;
}

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

/// Host buffers for what is copied to the host, and the copies that go there.
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
    // The buffer of the last cycle, or of prepare(). Its contents are invalid from here on. Only this
    // move touches it: the tag is marked as moving.
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

/// Files with room for what is copied to disk, and the copies that go there.
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
    arena.closer.wait();  // files that are being closed may hold the space that is missing
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
  Bytes offset;  // in the common file
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
  // The disk first: it may be full, and fresh host memory is taken in the background from then on.
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

/// Gives chunks that were released early new pages with the contents that the host has; what was to be
/// discarded is undefined. A chunk without pages afterwards is lost.
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

Result<Incoming> gather_in(Arena::Impl& arena, const std::vector<Tag*>& tags,
                           const Inventory& leaving) {
  Incoming in;
  // Do not plan pages for what can never fit.
  Bytes need;
  for (const Tag* tag : tags)
    for (const auto& [block, region] : tag->blocks)
      if (region->state == State::kPaused) need += total(region->parts);
  const Bytes capacity = arena.device.info().capacity;
  if (need > capacity) return Status::out_of_memory("resume", {need, Bytes(0), capacity, {}});
  std::vector<Span> spans;
  for (Tag* tag : tags) {
    std::vector<Run> runs;
    bool any_copy = false;
    for (auto& [block, region] : tag->blocks) {
      if (region->state != State::kPaused) continue;
      // A range that an earlier failed resume could not unmap.
      for (const auto& [at, page] : slots_touching(*tag, region->address, region->size)) {
        NEAP_TRY(arena.device.unmap(at, page.size).with_context("clearing an earlier failure"));
        tag->slots.erase(at);
        arena.reclaim(*tag, at, page.size);
        arena.store.give({page});
      }
      for (const Part& part : region->parts) {
        const Address at = region->address + part.offset.count();
        const PageUse use = page_use(*region);
        if (use == PageUse::kShared && !runs.empty() && runs.back().use == use &&
            runs.back().at + runs.back().size.count() == at) {
          runs.back().size += part.size;
        } else {
          runs.push_back({at, part.size, use, tag->page_limit});
        }
        if (region->policy == Policy::kZero) in.zero.emplace_back(at, part.size);
      }
      if (region->backup.filled && keeps_contents(region->policy)) {
        auto own = spans_of(*region, region->backup);
        clip(*region, own);
        any_copy = any_copy || !own.empty();
        for (const Span& span : own) in.copied += span.size;
        if (region->backup.file == nullptr) {
          spans.insert(spans.end(), own.begin(), own.end());
        } else {
          for (const Span& span : own)
            in.disk.push_back({span.at, region->backup.file, Bytes(span.place), span.size});
        }
      }
      Incoming::Item item;
      item.region = region;
      item.info = arena.describe(*region);
      ++item.info.generation;
      item.info.mapped = total(region->parts);
      item.info.state = State::kResuming;
      in.items.push_back(std::move(item));
    }
    auto chunks =
        cut_chunks(*tag, plan_pages(arena, runs, leaving), any_copy ? arena.chunk_size : Bytes(0));
    std::move(chunks.begin(), chunks.end(), std::back_inserter(in.chunks));
  }
  for (auto& item : in.items) item.region->state = State::kResuming;
  sort_spans(spans);
  attach_copies(in.chunks, spans, arena.hosts);
  return in;
}

void commit(Arena::Impl& arena, Incoming& in) {
  enter_slots(in.chunks);
  for (auto& item : in.items) {
    Region& region = *item.region;
    region.state = State::kResident;
    ++region.generation;
    Backup& backup = region.backup;
    const bool keep_file = backup.file != nullptr && arena.options.named_disk_files;
    const bool keep_host = !backup.host.none() && arena.keep_host_buffers;
    // Closed later, in the background: not under the lock.
    if (backup.file != nullptr && !keep_file)
      in.disk.push_back({0, std::move(backup.file), Bytes(0), Bytes(0)});
    if (!keep_host) arena.hosts.give(std::exchange(backup.host, {}));
    if (!keep_host) backup.filled = false;
    if (!keep_host && !keep_file) backup = {};
  }
}

bool unmap_all(Arena::Impl& arena, Incoming& in, bool to_driver) {
  std::vector<Page> pages;
  bool all = true;
  for (TransferChunk& chunk : in.chunks) {
    Status status = unmap_chunk(arena, chunk);
    if (!status.ok()) status = unmap_chunk(arena, chunk);
    if (!status.ok())
      log::error(format("{} at {:#x} stay mapped until the next resume: {}", chunk.size, chunk.at,
                        status.message()));
    all = all && status.ok();
    const auto first = chunk.pages.begin() + static_cast<std::ptrdiff_t>(chunk.mapped);
    pages.insert(pages.end(), first, chunk.pages.end());
    chunk.pages.erase(first, chunk.pages.end());
  }
  arena.store.give(pages, to_driver);
  return all;
}

void undo(Arena::Impl& arena, Incoming& in) {
  if (in.unpinning) in.unpinning->undo();
  (void)unmap_all(arena, in);
  {
    const std::unique_lock lock(arena.table);
    for (auto& item : in.items) item.region->state = State::kPaused;
    for (TransferChunk& chunk : in.chunks) {
      Address at = chunk.at;
      for (std::size_t i = 0; i < chunk.mapped; ++i) {
        chunk.pages[i].stuck = true;
        chunk.tag->slots.emplace(at, chunk.pages[i]);
        at += chunk.pages[i].size.count();
      }
    }
  }
}

}  // namespace neap::arena

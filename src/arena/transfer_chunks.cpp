#include "arena/transfer_chunks.h"

#include <algorithm>

#include "base/format.h"
#include "base/log.h"

namespace neap::arena {

using trace::EventKind;

std::vector<RegionInfo> Outgoing::infos() const {
  std::vector<RegionInfo> all;
  for (const Item& item : items) all.push_back(item.info);
  return all;
}

std::vector<RegionInfo> Incoming::infos() const {
  std::vector<RegionInfo> all;
  for (const Item& item : items) all.push_back(item.info);
  return all;
}

Bytes Incoming::size() const {
  Bytes sum;
  for (const TransferChunk& chunk : chunks) sum += chunk.size;
  return sum;
}

std::vector<Page> pages_of(const std::vector<TransferChunk>& chunks) {
  std::vector<Page> all;
  for (const TransferChunk& chunk : chunks)
    all.insert(all.end(), chunk.pages.begin(), chunk.pages.end());
  return all;
}

std::vector<Bytes> sizes_of(const std::vector<TransferChunk>& chunks) {
  std::vector<Bytes> all;
  for (const TransferChunk& chunk : chunks)
    all.insert(all.end(), chunk.sizes.begin(), chunk.sizes.end());
  return all;
}

void assign(std::vector<TransferChunk>& chunks, const std::vector<Page>& pages) {
  auto next = pages.begin();
  for (TransferChunk& chunk : chunks) {
    const auto end = next + static_cast<std::ptrdiff_t>(chunk.sizes.size());
    chunk.pages.assign(next, end);
    next = end;
  }
}

std::vector<TransferChunk> cut_chunks(Tag& tag, const std::vector<std::pair<Address, Page>>& pages,
                                      Bytes most) {
  std::vector<TransferChunk> chunks;
  for (const auto& [at, page] : pages) {
    const bool starts = chunks.empty() || chunks.back().at + chunks.back().size.count() != at ||
                        (!most.is_zero() && chunks.back().size + page.size > most);
    if (starts) {
      chunks.emplace_back();
      chunks.back().tag = &tag;
      chunks.back().at = at;
    }
    chunks.back().size += page.size;
    chunks.back().sizes.push_back(page.size);
    if (page.id != device::PageId::kNone) chunks.back().pages.push_back(page);
  }
  return chunks;
}

void recut(std::vector<TransferChunk>& chunks, Bytes most) {
  std::vector<TransferChunk> finer;
  for (const TransferChunk& chunk : chunks) {
    std::vector<std::pair<Address, Page>> places;
    Address at = chunk.at;
    for (std::size_t i = 0; i < chunk.sizes.size(); ++i) {
      const bool there = i < chunk.pages.size();
      places.emplace_back(at,
                          Page{there ? chunk.pages[i].id : device::PageId::kNone, chunk.sizes[i]});
      at += chunk.sizes[i].count();
    }
    for (TransferChunk& piece : cut_chunks(*chunk.tag, places, most)) {
      piece.mapped = chunk.mapped == 0 ? 0 : piece.pages.size();
      for (const device::Copy& copy : chunk.copies) {
        const Address from = std::max(copy.device, piece.at);
        const Address to = std::min(copy.device + copy.size.count(), piece.at + piece.size.count());
        if (from < to)
          piece.copies.push_back(
              {from, static_cast<std::byte*>(copy.host) + (from - copy.device), Bytes(to - from)});
      }
      finer.push_back(std::move(piece));
    }
  }
  chunks = std::move(finer);
}

std::vector<std::pair<Address, Page>> plan_pages(const Arena::Impl& arena,
                                                 const std::vector<Run>& runs,
                                                 const Inventory& leaving) {
  Inventory there = arena.store.kept_by_size();
  for (const auto& [size, count] : leaving) there[size] += count;
  std::vector<std::pair<Address, Page>> plan;
  for (const Run& run : runs) {
    Address at = run.at;
    const PageCaps caps = caps_for(arena.sizes, run.use, run.page_limit);
    for (const Bytes size : tile(run.size, arena.sizes, caps, there)) {
      plan.push_back({at, Page{device::PageId::kNone, size}});
      at += size.count();
    }
  }
  return plan;
}

Inventory leaving_pages(const Arena::Impl& arena, const std::vector<Tag*>& tags) {
  Inventory leaving;
  for (const Tag* tag : tags) {
    const Staying stay = staying(*tag);
    for (const auto& [at, page] : tag->slots)
      if (!stay.slots.contains(at) && arena.store.is_private(page.id)) ++leaving[page.size.count()];
  }
  return leaving;
}

Status map_pages(Arena::Impl& arena, TransferChunk& chunk) {
  Address from = chunk.at;
  for (std::size_t i = 0; i < chunk.mapped; ++i) from += chunk.pages[i].size.count();
  Address at = from;
  for (; chunk.mapped < chunk.pages.size(); ++chunk.mapped) {
    NEAP_TRY(arena.device.map(at, chunk.pages[chunk.mapped].id));
    at += chunk.pages[chunk.mapped].size.count();
  }
  // All pages were mapped before: an earlier call may have failed to set access.
  if (at == from) from = chunk.at;
  NEAP_TRY(arena.device.set_access(from, Bytes(at - from)));
  arena.events.record(EventKind::kMap, from, Bytes(at - from));
  return {};
}

Status map_chunk(Arena::Impl& arena, TransferChunk& chunk) {
  Status status = map_pages(arena, chunk);
  if (status.ok()) return status;
  if (const Status undone = unmap_chunk(arena, chunk); !undone.ok())
    log::error(format("a range at {:#x} stays mapped for now: {}", chunk.at, undone.message()));
  return status;
}

Status unmap_chunk(Arena::Impl& arena, TransferChunk& chunk) {
  if (chunk.mapped == 0) return {};
  Bytes size;
  for (std::size_t i = 0; i < chunk.mapped; ++i) size += chunk.pages[i].size;
  NEAP_TRY(arena.device.unmap(chunk.at, size));
  chunk.mapped = 0;
  arena.events.record(EventKind::kUnmap, chunk.at, size);
  return {};
}

Status copy_out(const TransferChunk& chunk, device::CopyQueue& queue,
                HostPool::Readying& readying) {
  for (const device::Copy& copy : chunk.copies) {
    NEAP_TRY(readying.wait(static_cast<const std::byte*>(copy.host), copy.size));
    NEAP_TRY(queue.to_host(copy));
  }
  return {};
}

Status copy_in(const TransferChunk& chunk, device::CopyQueue& queue) {
  for (const device::Copy& copy : chunk.copies) NEAP_TRY(queue.to_device(copy));
  return {};
}

void attach_copies(std::vector<TransferChunk>& chunks, const std::vector<Span>& spans,
                   HostPool& hosts, std::vector<device::Copy> TransferChunk::*list) {
  // Chunks of different tags are not in address order, so each searches its first span.
  for (TransferChunk& chunk : chunks) {
    const Address end = chunk.at + chunk.size.count();
    auto span =
        std::upper_bound(spans.begin(), spans.end(), chunk.at,
                         [](Address at, const Span& s) { return at < s.at + s.size.count(); });
    for (; span != spans.end() && span->at < end; ++span) {
      const Address from = std::max(span->at, chunk.at);
      const Address to = std::min(span->at + span->size.count(), end);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): a host address by its number
      auto* host = reinterpret_cast<std::byte*>(span->place + (from - span->at));
      hosts.split({from, host, Bytes(to - from)}, chunk.*list);
    }
  }
}

Status finish_contents(Arena::Impl& arena, Incoming& in, device::CopyQueue* queue) {
  for (const auto& [at, size] : in.zero) NEAP_TRY(arena.device.fill(at, size, 0));
  if (queue != nullptr && !in.disk.empty()) NEAP_TRY(copy_from_disk(in.disk, arena.hosts, *queue));
  return queue != nullptr ? queue->drain() : Status();
}

void enter_slots(const std::vector<TransferChunk>& chunks) {
  for (const TransferChunk& chunk : chunks) {
    Address at = chunk.at;
    for (const Page& page : chunk.pages) {
      chunk.tag->slots.insert_or_assign(at, page);
      at += page.size.count();
    }
  }
}

void remove_part(Region& region, Address at, Bytes size) {
  const std::uint64_t low = at - std::min(at, region.address);
  const std::uint64_t from = at < region.address ? 0 : low;
  const std::uint64_t to = at + size.count() - region.address;
  std::vector<Part> left;
  for (const Part& part : region.parts) {
    const std::uint64_t begin = part.offset.count();
    const std::uint64_t end = begin + part.size.count();
    if (begin < std::min(end, from))
      left.push_back({Bytes(begin), Bytes(std::min(end, from) - begin)});
    if (std::max(begin, to) < end) {
      const std::uint64_t start = std::max(begin, to);
      left.push_back({Bytes(start), Bytes(end - start)});
    }
  }
  region.parts = std::move(left);
}

}  // namespace neap::arena

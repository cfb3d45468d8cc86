// Regions that are resumed in a move: collecting them, commit and undo.
#include <algorithm>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

// After their first resume, regions below this size share pages with adjacent regions of the same
// tag. They move together anyway, and the cost depends on the number of page handles.
constexpr Bytes kSmallRegion = 256_MiB;

PageUse page_use(const Region& region) {
  if (region.size < kSmallRegion) return PageUse::kShared;
  if (keeps_contents(region.policy)) return PageUse::kCopied;
  return region.generation == 0 ? PageUse::kFirst : PageUse::kAgain;
}

/// Removes spans that the region no longer maps: a paused region may have shrunk.
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

}  // namespace

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
      // An earlier failed resume could not unmap this range.
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
    // Closed later in the background, not under the lock.
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

// Pages that are mapped in several places: aliases in this process, exports to and imports from others.
#include <unistd.h>

#include <algorithm>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

/// The pages of a region. Fails unless the whole region is resident.
Result<std::vector<std::pair<Address, Page>>> whole_slots(const Region& region) {
  if (region.state != State::kResident || total(region.parts) != region.size)
    return Status(ErrorCode::kBusy,
                  format("a region of {} is not resident as a whole", region.tag->name));
  return slots_touching(*region.tag, region.address, region.size);
}

/// A mapped chunk over addresses in `tag`. Its whole pages begin `lead` bytes before the region.
struct Placed {
  Address block = 0;
  Bytes size;
  std::vector<TransferChunk> chunks;
};
Result<Placed> place(Arena::Impl& arena, std::unique_lock<std::shared_mutex>& lock, Tag& tag,
                     const std::vector<Page>& pages) {
  Placed placed;
  for (const Page& page : pages) placed.size += page.size;
  NEAP_TRY_ASSIGN(placed.block, tag.space.take(placed.size));
  std::vector<std::pair<Address, Page>> at;
  Address next = placed.block;
  for (const Page& page : pages) {
    at.emplace_back(next, page);
    next += page.size.count();
  }
  placed.chunks = cut_chunks(tag, at, Bytes(0));
  lock.unlock();
  Status status = map_chunk(arena, placed.chunks.front());
  lock.lock();
  if (status.ok()) return placed;
  if (placed.chunks.front().mapped == 0) {
    tag.space.give(placed.block, placed.size);
  } else {
    // It stays mapped: its addresses keep the pages until the tag is destroyed.
    TransferChunk& stuck = placed.chunks.front();
    stuck.pages.resize(stuck.mapped);
    for (const Page& page : stuck.pages) arena.store.share(page.id);
    enter_slots(placed.chunks);
    arena.retire(tag, placed.block, placed.size);
  }
  return status;
}

}  // namespace

Result<RegionInfo> Arena::alias(std::string_view name, RegionId source_id) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  std::unique_lock lock(arena.table);
  NEAP_TRY_ASSIGN(Region * source, find_region(arena, source_id));
  Tag& tag = arena.tag_named(name);
  std::vector<Tag*> tags{source->tag};
  if (&tag != source->tag) tags.push_back(&tag);
  const Moving moving(arena, lock, tags);
  NEAP_TRY(moving.status());
  NEAP_TRY_ASSIGN(source, find_region(arena, source_id));  // may be destroyed by now
  if (source->imported)
    return Status(ErrorCode::kUnsupported, "an imported region cannot be aliased: import it again");
  NEAP_TRY_ASSIGN(const auto slots, whole_slots(*source));
  std::vector<Page> pages;
  pages.reserve(slots.size());
  for (const auto& [at, page] : slots) pages.push_back(page);
  const std::uint64_t lead = source->address - slots.front().first;
  const Bytes requested = source->requested;
  const Bytes size = source->size;
  const Policy policy = source->policy;
  auto placed = place(arena, lock, tag, pages);
  if (!placed.ok()) return Status(placed.status()).with_context("making an alias");
  for (const Page& page : pages) arena.store.share(page.id);
  enter_slots(placed->chunks);
  Region& region = arena.add_region(tag, placed->block, placed->size, placed->block + lead,
                                    requested, size, policy);
  region.generation = 1;
  return arena.describe(region);
}

Result<std::vector<ExportedPage>> Arena::export_pages(RegionId id) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  std::unique_lock lock(arena.table);
  NEAP_TRY_ASSIGN(Region * region, find_region(arena, id));
  // Must not wait: an owner may export on the thread that a pause of this tag waits for.
  if (region->tag->moving)
    return Status(ErrorCode::kBusy, format("{} is on the move", region->tag->name));
  const Moving moving(arena, lock, {region->tag});
  if (region->imported)
    return Status(ErrorCode::kUnsupported, "an imported region is its exporter's to export");
  NEAP_TRY_ASSIGN(const auto slots, whole_slots(*region));
  const Address begin = region->address;
  const std::string name = region->tag->name;
  lock.unlock();
  std::vector<ExportedPage> exported;
  for (const auto& [at, page] : slots) {
    auto descriptor = arena.device.export_page(page.id);
    if (!descriptor.ok()) {
      for (const ExportedPage& done : exported) ::close(done.descriptor);
      return Status(descriptor.status()).with_context(format("exporting a region of {}", name));
    }
    arena.store.mark_exported(page.id);
    ExportedPage entry;
    entry.descriptor = *descriptor;
    entry.offset = Bytes(at < begin ? 0 : at - begin);
    entry.lead = Bytes(at < begin ? begin - at : 0);
    entry.size = page.size;
    exported.push_back(entry);
  }
  return exported;
}

Result<RegionInfo> Arena::import_pages(std::string_view name,
                                       std::span<const ExportedPage> exported) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  if (exported.empty())
    return Status(ErrorCode::kInvalidArgument, "an import needs at least one page");
  const Bytes lead = exported.front().lead;
  Bytes sum;
  for (const ExportedPage& entry : exported) {
    if (entry.offset + lead != sum && !(sum.is_zero() && entry.offset.is_zero()))
      return Status(ErrorCode::kInvalidArgument, "imported pages leave a hole or overlap");
    if (&entry != &exported.front() && !entry.lead.is_zero())
      return Status(ErrorCode::kInvalidArgument, "only the first page can begin before its region");
    sum += entry.size;
  }
  if (lead >= exported.front().size)
    return Status(ErrorCode::kInvalidArgument, "the first page ends before its region begins");
  std::vector<Page> pages;
  Status status;
  for (const ExportedPage& entry : exported) {
    auto page = arena.device.import_page(entry.descriptor, entry.size);
    if (!page.ok()) {
      status = page.status();
      break;
    }
    pages.push_back({*page, entry.size});
  }
  std::unique_lock lock(arena.table);
  if (status.ok()) {
    Tag& tag = arena.tag_named(name);
    const Moving moving(arena, lock, {&tag});
    auto placed =
        moving.status().ok() ? place(arena, lock, tag, pages) : Result<Placed>(moving.status());
    if (placed.ok()) {
      enter_slots(placed->chunks);
      Region& region =
          arena.add_region(tag, placed->block, placed->size, placed->block + lead.count(),
                           sum - lead, sum - lead, Policy::kDiscard);
      region.imported = true;
      region.generation = 1;
      return arena.describe(region);
    }
    status = placed.status();
  }
  lock.unlock();
  for (const Page& page : pages) {
    if (const Status gone = arena.device.release(page.id); !gone.ok())
      log::warn(format("an imported page was not released: {}", gone.message()));
  }
  return std::move(status).with_context(format("importing pages for {}", name));
}

}  // namespace neap::arena

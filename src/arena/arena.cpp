#include "arena/arena.h"

#include <algorithm>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {

std::string_view to_string(Policy policy) {
  switch (policy) {
    case Policy::kDiscard:
      return "discard";
    case Policy::kHost:
      return "host";
    case Policy::kDisk:
      return "disk";
    case Policy::kZero:
      return "zero";
  }
  return "unknown";
}

std::string_view to_string(State state) {
  switch (state) {
    case State::kResident:
      return "resident";
    case State::kPausing:
      return "pausing";
    case State::kPaused:
      return "paused";
    case State::kResuming:
      return "resuming";
  }
  return "unknown";
}

Result<std::unique_ptr<Arena>> Arena::make(device::Device& device, Options options) {
  if (!is_multiple_of(2_MiB, device.info().granularity))
    return Status(ErrorCode::kUnsupported, format("a device with granularity {}: pages of 2 MiB "
                                                  "must be multiples of it",
                                                  device.info().granularity));
  return std::unique_ptr<Arena>(new Arena(std::make_unique<Impl>(device, std::move(options))));
}

Arena::Arena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Arena::~Arena() {
  // A forked child must not run the destructor: a lock may stay locked, the threads do not exist,
  // and backup addresses may hold other memory.
  if (impl_ != nullptr && impl_->owner != current_process()) (void)impl_.release();
}

Result<std::vector<TransferChunk>> fill_runs(Arena::Impl& arena, Tag& tag,
                                             const std::vector<Run>& runs,
                                             const std::function<std::string()>& what) {
  auto chunks = cut_chunks(tag, plan_pages(arena, runs), Bytes(0));
  auto pages = arena.store.take_all(sizes_of(chunks));
  if (!pages.ok()) return arena.explain(pages.status(), bytes_of(chunks), what());
  assign(chunks, *pages);
  for (TransferChunk& chunk : chunks) {
    Status status = map_chunk(arena, chunk);
    if (status.ok()) continue;
    Incoming failed;
    failed.chunks = std::move(chunks);
    undo(arena, failed);
    return std::move(status).with_context(what());
  }
  return chunks;
}

namespace {

Result<Bytes> region_size(const Arena::Impl& arena, Bytes requested) {
  const Bytes unit = arena.device.info().granularity;
  if (requested.is_zero() || requested > Bytes(1ull << 56))
    return Status(ErrorCode::kInvalidArgument, format("a region of {}", requested));
  return round_up(requested, unit);
}

bool has_block_between(const Tag& tag, Address from, Address to) {
  const auto it = tag.blocks.lower_bound(from);
  return it != tag.blocks.end() && it->first < to;
}

/// Pages of the region that no other region of the tag uses. The caller holds the table lock.
std::vector<std::pair<Address, Page>> pages_of_only(const Tag& tag, const Region& region) {
  std::vector<std::pair<Address, Page>> pages;
  for (const auto& [at, page] : slots_touching(tag, region.block, region.block_size)) {
    const Region* first = block_owner(tag, at);
    const auto next = tag.blocks.upper_bound(std::max(at, region.block));
    const bool shared = (first != nullptr && first != &region) ||
                        (next != tag.blocks.end() && next->first < at + page.size.count()) ||
                        (at < region.block && has_block_between(tag, at, region.block));
    if (!shared) pages.emplace_back(at, page);
  }
  return pages;
}

/// Unmaps the pages that only one region uses. On failure, maps it again and restores the region's
/// former state. Takes the table lock.
Status unmap_region(Arena::Impl& arena, Region& region, const RegionInfo& info, Outgoing& out) {
  const bool tell = info.state == State::kResident;
  Status status = tell ? arena.call_before_unmap({info}) : Status();
  const bool told = tell && status.ok();
  for (TransferChunk& chunk : out.chunks) {
    chunk.mapped = chunk.pages.size();
    if (status.ok()) status = unmap_chunk(arena, chunk);
  }
  if (status.ok()) return {};
  Outgoing::Item item;
  item.region = &region;
  out.items.push_back(std::move(item));
  undo(arena, out);
  if (told) arena.notify_still_mapped({info});
  const std::unique_lock lock(arena.table);
  region.state = info.state;
  return status;
}

void give_backup(Arena::Impl& arena, Tag& tag, Backup backup) {
  arena.hosts.give(backup.host);
  arena.hosts.release_free(&tag);
  if (backup.file == nullptr) return;
  // An initializer list would keep a reference and close the file here.
  std::vector<DiskCopy> last;
  last.push_back({0, std::move(backup.file), Bytes(0), Bytes(0)});
  arena.close_in_background(std::move(last));
}

}  // namespace

Result<RegionInfo> Arena::create(std::string_view name, Bytes requested, Policy policy) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  NEAP_TRY_ASSIGN(const Bytes size, region_size(arena, requested));
  const auto what = [&] { return format("a region of {} for {}", size, name); };
  if (size > arena.device.info().capacity)  // fail before reserving or planning what cannot fit
    return arena.explain(Status::out_of_memory("", {}), requested, what());
  std::unique_lock lock(arena.table);
  Tag& tag = arena.tag_named(name);
  if (const Address retired = arena.take_retired(tag, size); retired != 0) {
    Region& region = arena.add_region(tag, retired, size, retired, requested, size, policy);
    region.generation = 1;
    return arena.describe(region);
  }
  NEAP_TRY_ASSIGN(const Address at, tag.space.take(size));
  const PageUse use = keeps_contents(policy) ? PageUse::kCopied : PageUse::kFirst;
  const Run run{at, size, use, tag.page_limit};
  lock.unlock();
  auto chunks = fill_runs(arena, tag, {run}, what);
  lock.lock();
  if (!chunks.ok()) {
    arena.retire(tag, at, size);  // ranges that the device refused to unmap stay
    return chunks.status();
  }
  enter_slots(*chunks);
  Region& region = arena.add_region(tag, at, size, at, requested, size, policy);
  region.generation = 1;
  return arena.describe(region);
}

Result<RegionInfo> Arena::create_paused(std::string_view name, Bytes requested, Policy policy) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  NEAP_TRY_ASSIGN(const Bytes size, region_size(arena, requested));
  const std::unique_lock lock(arena.table);
  Tag& tag = arena.tag_named(name);
  NEAP_TRY_ASSIGN(const Address at, tag.space.take(size));
  Region& region = arena.add_region(tag, at, size, at, requested, size, policy);
  region.state = State::kPaused;
  return arena.describe(region);
}

Status Arena::destroy(RegionId id, bool release_pages) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  std::unique_lock lock(arena.table);
  NEAP_TRY_ASSIGN(Region * region, find_region(arena, id));
  Tag& tag = *region->tag;
  const Moving moving(arena, lock, {&tag});
  NEAP_TRY(moving.status());
  NEAP_TRY_ASSIGN(region, find_region(arena, id));  // another move may have destroyed it meanwhile
  const RegionInfo info = arena.describe(*region);
  const bool imported = region->imported;
  const auto leaving = pages_of_only(tag, *region);
  region->state = State::kPausing;
  lock.unlock();

  Outgoing out;
  out.chunks = cut_chunks(tag, leaving, Bytes(0));
  if (Status status = unmap_region(arena, *region, info, out); !status.ok())
    return std::move(status).with_context(format("destroying a region of {}", info.tag));

  lock.lock();
  for (const auto& [at, page] : leaving) tag.slots.erase(at);
  for (const TransferChunk& chunk : out.chunks) arena.reclaim(tag, chunk.at, chunk.size);
  Backup backup = std::move(region->backup);
  arena.remove_region(*region);
  lock.unlock();
  give_backup(arena, tag, std::move(backup));
  if (imported) {
    for (const auto& [at, page] : leaving) {
      if (const Status gone = arena.device.release(page.id); !gone.ok())
        log::warn(format("an imported page was not released: {}", gone.message()));
    }
  } else {
    arena.store.give(pages_of(out.chunks), release_pages);
    arena.note_freed_pages();
  }
  return {};
}

Result<RegionInfo> Arena::find(device::Address address) const {
  NEAP_TRY(impl_->check_process());
  if (auto found = look_up(address)) return std::move(*found);
  return Status(ErrorCode::kNotFound, format("no region holds {:#x}", address));
}

std::optional<RegionInfo> Arena::look_up(device::Address address) const {
  if (!impl_->check_process().ok()) return std::nullopt;
  const std::shared_lock lock(impl_->table);
  const Region* region = impl_->index.find(address);
  if (region == nullptr) return std::nullopt;
  return impl_->describe(*region);
}

Result<RegionInfo> Arena::info(RegionId id) const {
  NEAP_TRY(impl_->check_process());
  const std::shared_lock lock(impl_->table);
  NEAP_TRY_ASSIGN(const Region* region, find_region(*impl_, id));
  return impl_->describe(*region);
}

std::vector<RegionInfo> Arena::regions(std::string_view tag) const {
  if (!impl_->check_process().ok()) return {};
  const std::shared_lock lock(impl_->table);
  std::vector<RegionInfo> all;
  impl_->index.for_each([&](const Region& region) {
    if (tag.empty() || region.tag->name == tag) all.push_back(impl_->describe(region));
  });
  return all;
}

Status Arena::prepare(std::span<const std::string> names) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  std::unique_lock lock(arena.table);
  const Moving moving(arena, lock, tags_of(arena, names));
  NEAP_TRY(moving.status());
  std::vector<Region*> wanting;
  std::map<const Tag*, Bytes> need;
  for (Tag* tag : moving.tags()) {
    for (const auto& [at, region] : tag->blocks) {
      if (region->imported || region->state != State::kResident ||
          region->policy != Policy::kHost || region->backup.host.size >= total(region->parts))
        continue;
      wanting.push_back(region);
      need[tag] += total(region->parts);
    }
  }
  lock.unlock();
  std::vector<HostBuffer> buffers;
  Status status;
  for (Region* region : wanting) {
    const Bytes size = total(region->parts);
    Bytes& expect = need[region->tag];
    auto taken = arena.hosts.take(size, expect, region->tag);
    if (!taken.ok()) {
      status = taken.status();
      break;
    }
    expect -= size;
    buffers.push_back(*taken);
  }
  if (status.ok()) {
    auto readying = arena.hosts.ready(buffers);
    for (const HostBuffer& buffer : buffers) {
      if (status.ok()) status = readying.wait(buffer.at, buffer.size);
    }
  }
  if (!status.ok()) {
    for (const HostBuffer& buffer : buffers) arena.hosts.give(buffer);
    return std::move(status).with_context(format("preparing {}", join(moving.tags())));
  }
  lock.lock();
  for (std::size_t i = 0; i < wanting.size(); ++i) {
    arena.hosts.give(wanting[i]->backup.host);
    wanting[i]->backup.filled = false;
    wanting[i]->backup.host = buffers[i];
  }
  return {};
}

const void* Arena::host_copy(RegionId id) const {
  if (!impl_->check_process().ok()) return nullptr;
  const std::shared_lock lock(impl_->table);
  const auto it = impl_->regions.find(static_cast<std::uint64_t>(id));
  if (it == impl_->regions.end() || !it->second->backup.filled) return nullptr;
  return it->second->backup.host.at;
}

Result<Bytes> Arena::release_store(Bytes keep) {
  NEAP_TRY(impl_->check_process());
  return impl_->store.release_down_to(keep);
}
void Arena::set_page_store_budget(Bytes budget) {
  if (!impl_->check_process().ok()) return;
  impl_->store.set_budget(budget);
}

void Arena::set_backup_options(bool keep_host_buffers, Bytes host_budget, std::string disk_folder,
                               KeptBuffers kept) {
  if (!impl_->check_process().ok()) return;
  impl_->hosts.set_budget(host_budget);
  {
    const std::unique_lock lock(impl_->table);
    impl_->disk_folder = std::move(disk_folder);
  }
  impl_->keep_host_buffers = keep_host_buffers;
  if (!keep_host_buffers && kept == KeptBuffers::kReleaseNow) impl_->release_kept_buffers();
}

void Arena::finish_disk_files() {
  if (!impl_->check_process().ok()) return;
  impl_->closer.wait();
  const std::unique_lock lock(impl_->table);
  for (const auto& [id, region] : impl_->regions)
    if (region->backup.file != nullptr) region->backup.file->unlink();
}

Stats Arena::stats() const {
  Stats stats;
  if (!impl_->check_process().ok()) return stats;
  const PageStore::Counts counts = impl_->store.counts();
  stats.page_store = counts.kept;
  stats.physical = counts.physical;
  stats.peak_physical = counts.peak_physical;
  stats.driver_creates = counts.creates;
  stats.driver_releases = counts.releases;
  stats.store_hits = counts.hits;
  stats.host_buffers = impl_->hosts.held();
  const std::shared_lock lock(impl_->table);
  for (const auto& [name, tag] : impl_->tags) {
    TagStats sums = tag->sums;
    sums.tag = name;
    sums.regions = tag->blocks.size();
    for (const auto& [at, region] : tag->blocks) {
      sums.virtual_bytes += region->size;
      sums.host += region->backup.host.size;
      if (region->backup.file != nullptr) sums.disk += total(region->backup.parts);
    }
    for (const auto& [at, page] : tag->slots) sums.mapped += page.size;
    sums.mapped += tag->taken;
    sums.host += tag->storage;
    sums.disk += tag->disk_storage;
    stats.tags.push_back(std::move(sums));
  }
  return stats;
}

device::Device& Arena::device() const {
  return impl_->device;
}

Result<device::PageId> Arena::take_page(std::string_view name, Bytes size) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  auto page = arena.store.take(size);
  if (!page.ok()) return arena.explain(page.status(), size, format("a page for {}", name));
  const std::unique_lock lock(arena.table);
  arena.tag_named(name).taken += size;
  return page->id;
}

void Arena::give_page(std::string_view name, device::PageId page, Bytes size) {
  Impl& arena = *impl_;
  if (!arena.check_process().ok()) return;
  arena.store.give({Page{page, size}});
  {
    const std::unique_lock lock(arena.table);
    arena.tag_named(name).taken -= size;
  }
  arena.note_freed_pages();
}

}  // namespace neap::arena

#include "arena/arena_impl.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/process.h"

namespace neap::arena {
namespace {

// The driver pins for one thread at a time, and copies also need memory bandwidth. More threads
// finish the touching earlier but the whole pause later (measured on an H200).
constexpr unsigned kMostTouchThreads = 8;
// With more tags than this, a tag without regions returns its addresses at once.
constexpr std::size_t kTagsWithIdleAddresses = 64;

// Large enough for copies at full speed. A small device uses a sixteenth of its capacity at most.
constexpr Bytes kLargestChunk = 512_MiB;

unsigned touch_threads(unsigned wanted) {
  if (wanted != 0) return wanted;
  return std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostTouchThreads);
}

// Bytes that a move maps, copies and unmaps at once on a device of this capacity (zero: a large
// one). An exchange holds at most this much more than its larger side.
Bytes transfer_chunk_size(Bytes granularity, Bytes capacity) {
  if (capacity.is_zero()) return kLargestChunk;
  return std::max(granularity, std::min(kLargestChunk, capacity / 16));
}

}  // namespace

Bytes total(const std::vector<Part>& parts) {
  Bytes sum;
  for (const Part& part : parts) sum += part.size;
  return sum;
}

Arena::Impl::Impl(device::Device& device_in, Options options_in)
    : device(device_in),
      options(std::move(options_in)),
      events(options.events, device.info().ordinal),
      store(device, events, options.page_store_budget, options.physical_target),
      hosts(device, options.host_budget, touch_threads(options.touch_threads)),
      chunk_size(transfer_chunk_size(device.info().granularity, device.info().capacity)),
      keep_host_buffers(options.keep_host_buffers),
      disk_folder(options.disk_folder) {}

Arena::Impl::~Impl() {
  if (owner != current_process()) return;
  const auto say = [](const Status& status) {
    if (!status.ok()) log::warn(format("the arena was not closed cleanly: {}", status.message()));
  };
  idle_queues.clear();
  std::vector<Page> pages;
  for (auto& [name, tag] : tags) {
    for (const auto& [at, page] : tag->slots) {
      say(device.unmap(at, page.size));
      const Region* owner_region = block_owner(*tag, at);
      if (owner_region != nullptr && owner_region->imported) {
        say(device.release(page.id));
      } else {
        pages.push_back(page);
      }
    }
    for (const auto& [at, region] : tag->blocks) tag->space.give(at, region->block_size);
    for (const auto& [at, size] : tag->retired.all()) tag->space.give(at, size);
    say(tag->space.clear());
  }
  store.give(pages);
  say(store.release_down_to(Bytes(0)).status());
  for (auto& [id, region] : regions) hosts.give(region->backup.host);
}

Status Arena::Impl::check_process() const {
  if (owner == current_process()) return {};
  return {ErrorCode::kUnsupported,
          format("the arena belongs to process {}; a forked child cannot use it", owner)};
}

Tag& Arena::Impl::tag_named(std::string_view name) {
  if (Tag* known = known_tag(name)) return *known;
  auto tag = std::make_unique<Tag>(std::string(name), device);
  Tag& made = *tag;
  tags.emplace(made.name, std::move(tag));
  return made;
}

Tag* Arena::Impl::known_tag(std::string_view name) const {
  const auto it = tags.find(name);
  return it == tags.end() ? nullptr : it->second.get();
}

Region& Arena::Impl::add_region(Tag& tag, Address block, Bytes block_size, Address address,
                                Bytes requested, Bytes size, Policy policy) {
  auto region = std::make_unique<Region>();
  region->id = RegionId{next_region++};
  region->tag = &tag;
  region->block = block;
  region->block_size = block_size;
  region->address = address;
  region->requested = requested;
  region->size = size;
  region->policy = policy;
  region->parts = {{Bytes(0), size}};
  Region& made = *region;
  tag.blocks.emplace(block, &made);
  index.insert(address, size, made);
  regions.emplace(static_cast<std::uint64_t>(made.id), std::move(region));
  events.record(trace::EventKind::kRegionCreate, address, size, tag.name);
  return made;
}

void Arena::Impl::remove_region(Region& region) {
  Tag& tag = *region.tag;
  events.record(trace::EventKind::kRegionDestroy, region.address, region.size, tag.name);
  index.erase(region.address);
  tag.blocks.erase(region.block);
  retire(tag, region.block, region.block_size);
  regions.erase(static_cast<std::uint64_t>(region.id));
  if (tag.blocks.empty() && tags.size() > kTagsWithIdleAddresses) {
    if (const Status status = tag.space.clear(); !status.ok())
      log::warn(format("tag {} keeps its addresses: {}", tag.name, status.message()));
  }
}

void Arena::Impl::retire(Tag& tag, Address at, Bytes size) {
  tag.retired.add(at, size);
  reclaim(tag, at, size);
}

void Arena::Impl::reclaim(Tag& tag, Address at, Bytes size) {
  const auto free = [&](Address from, Address to) {
    if (from >= to) return;
    tag.retired.remove(from, Bytes(to - from));
    tag.space.give(from, Bytes(to - from));
  };
  for (const auto& [begin, length] : tag.retired.within(at, size)) {
    Address next = begin;
    for (const auto& [start, page] : slots_touching(tag, begin, length)) {
      free(next, start);
      next = std::max(next, start + page.size.count());
    }
    free(next, begin + length.count());
  }
}

Address Arena::Impl::take_retired(Tag& tag, Bytes size) {
  if (tag.moving) return 0;
  // Skip pages that an alias or another process also maps.
  const auto at = tag.retired.take_if(size, [&](Address from) {
    const auto slots = slots_touching(tag, from, size);
    return std::all_of(slots.begin(), slots.end(), [&](const auto& slot) {
      return !slot.second.stuck && store.is_private(slot.second.id);
    });
  });
  return at.value_or(0);
}

RegionInfo Arena::Impl::describe(const Region& region) const {
  RegionInfo info;
  info.id = region.id;
  info.tag = region.tag->name;
  info.address = region.address;
  info.requested = region.requested;
  info.size = region.size;
  info.state = region.state;
  info.mapped = region.state == State::kPaused ? Bytes(0) : total(region.parts);
  info.policy = region.policy;
  info.generation = region.generation;
  info.kept = region.kept;
  return info;
}

std::vector<MemoryHolder> Arena::Impl::holders() const {
  std::vector<MemoryHolder> all;
  for (const auto& [name, tag] : tags) {
    Bytes bytes = tag->taken;
    for (const auto& [at, page] : tag->slots) bytes += page.size;
    if (!bytes.is_zero()) all.push_back({name, bytes});
  }
  if (const Bytes kept = store.counts().kept; !kept.is_zero()) all.push_back({"page store", kept});
  return all;
}

Status Arena::Impl::explain(Status status, Bytes need, std::string_view what) {
  if (status.code() != ErrorCode::kOutOfDeviceMemory)
    return std::move(status).with_context(format("making room for {}", what));
  const PageStore::Counts counts = store.counts();
  MemoryShortage shortage{need, counts.kept, device.info().capacity, {}};
  {
    const std::shared_lock lock(table);
    shortage.holders = holders();
  }
  if (const auto memory = device.memory(); memory.ok()) {
    shortage.free += memory->free;
    shortage.capacity = memory->total;
    const Bytes others = saturating_sub(memory->total, memory->free + counts.physical);
    if (!others.is_zero()) shortage.holders.push_back({"others on the device", others});
  }
  std::stable_sort(shortage.holders.begin(), shortage.holders.end(),
                   [](const MemoryHolder& a, const MemoryHolder& b) { return a.bytes > b.bytes; });
  return Status::out_of_memory(std::string(what), std::move(shortage));
}

Result<std::unique_ptr<device::CopyQueue>> Arena::Impl::take_queue() {
  {
    const std::unique_lock lock(table);
    if (!idle_queues.empty()) {
      auto queue = std::move(idle_queues.back());
      idle_queues.pop_back();
      return queue;
    }
  }
  return device.make_copy_queue();
}

void Arena::Impl::give_queue(std::unique_ptr<device::CopyQueue> queue) {
  if (queue == nullptr) return;
  const std::unique_lock lock(table);
  idle_queues.push_back(std::move(queue));
}

bool Arena::Impl::release_kept_buffers() {
  std::vector<HostBuffer> buffers;
  {
    const std::unique_lock lock(table);
    for (auto& [id, region] : regions) {
      const bool idle = region->state == State::kResident ||
                        (region->state == State::kPaused && !region->backup.filled);
      if (!idle || region->tag->moving || region->backup.host.none()) continue;
      buffers.push_back(std::exchange(region->backup.host, {}));
      region->backup.filled = false;
    }
  }
  for (const HostBuffer& buffer : buffers) hosts.give(buffer);
  hosts.release_free();
  return !buffers.empty();
}

void Arena::Impl::release_unkept_buffers() {
  if (!keep_host_buffers) hosts.release_free();
}

void Arena::Impl::close_in_background(std::vector<DiskCopy> copies) {
  if (copies.empty()) return;
  // The background job then holds the last references to the files.
  const auto files = std::make_shared<std::vector<DiskCopy>>(std::move(copies));
  closer.run([files] { files->clear(); });
}

void Arena::Impl::note_freed_pages() {
  {
    const std::unique_lock lock(table);
    ++freed_memory;
  }
  settled.notify_all();
}

void Arena::Impl::record_store() {
  if (options.events != nullptr) events.record(trace::EventKind::kStore, 0, store.counts().kept);
}

namespace {

Status check_transfers(const Tag& tag) {
  std::uint64_t copies = 0;
  for (const auto& [at, region] : tag.blocks) copies += region->transfers;
  if (copies == 0) return {};
  return {ErrorCode::kBusy,
          format("{} copies between {} and host storage were not waited for", copies, tag.name)};
}

}  // namespace

Moving::Moving(Arena::Impl& impl, std::unique_lock<std::shared_mutex>& lock, std::vector<Tag*> tags)
    : impl_(impl), lock_(lock), tags_(std::move(tags)) {
  const auto settled = [&] {
    return std::none_of(tags_.begin(), tags_.end(), [](const Tag* tag) { return tag->moving; });
  };
  if (!settled() && impl_.in_listener()) {
    std::string names;
    for (const Tag* tag : std::exchange(tags_, {}))
      if (tag->moving) names += (names.empty() ? "" : ", ") + tag->name;
    status_ = {ErrorCode::kBusy, format("{} on the move: a listener cannot wait for it", names)};
    return;
  }
  impl_.settled.wait(lock_, settled);
  for (const Tag* tag : tags_) {
    status_ = check_transfers(*tag);
    if (status_.ok()) continue;
    tags_.clear();
    return;
  }
  for (Tag* tag : tags_) tag->moving = true;
}

Moving::~Moving() {
  if (!lock_.owns_lock()) lock_.lock();
  for (Tag* tag : tags_) tag->moving = false;
  impl_.settled.notify_all();
}

Region* block_owner(const Tag& tag, Address at) {
  auto it = tag.blocks.upper_bound(at);
  if (it == tag.blocks.begin()) return nullptr;
  --it;
  return at < it->first + it->second->block_size.count() ? it->second : nullptr;
}

std::vector<std::pair<Address, Page>> slots_touching(const Tag& tag, Address at, Bytes size) {
  std::vector<std::pair<Address, Page>> found;
  auto it = tag.slots.upper_bound(at);
  if (it != tag.slots.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second.size.count() > at) it = before;
  }
  for (; it != tag.slots.end() && it->first < at + size.count(); ++it) found.emplace_back(*it);
  return found;
}

namespace {

/// Adds the pages under `region`, then the regions under these pages, and repeats for each of them.
void add_staying(const Region& region, Staying& stay) {
  std::vector<const Region*> todo;
  if (stay.regions.insert(&region).second) todo.push_back(&region);
  while (!todo.empty()) {
    const Region& next = *todo.back();
    todo.pop_back();
    const Tag& tag = *next.tag;
    for (const auto& [at, page] : slots_touching(tag, next.address, next.size)) {
      if (!stay.slots.emplace(at, page.size).second) continue;
      auto it = tag.blocks.upper_bound(at);
      if (it != tag.blocks.begin()) --it;
      for (; it != tag.blocks.end() && it->first < at + page.size.count(); ++it) {
        const bool under = it->first + it->second->block_size.count() > at;
        if (under && stay.regions.insert(it->second).second) todo.push_back(it->second);
      }
    }
  }
}

}  // namespace

Staying staying(const Tag& tag) {
  Staying stay;
  for (const auto& [at, region] : tag.blocks)
    if (region->kept || region->imported) add_staying(*region, stay);
  return stay;
}

Staying staying_with(const Region& region) {
  Staying stay;
  add_staying(region, stay);
  return stay;
}

}  // namespace neap::arena

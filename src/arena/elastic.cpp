// Operations of one region: shrink, grow and keep_resident.
#include <algorithm>
#include <optional>

#include "arena/operations.h"
#include "base/format.h"

namespace neap::arena {
namespace {

Status check_range(const Region& region, Bytes offset, Bytes size) {
  if (offset > region.size || size > region.size - offset)
    return {ErrorCode::kInvalidArgument,
            format("[{}, {}) is not in a region of {}", offset, offset + size, region.size)};
  if (region.imported) return {ErrorCode::kUnsupported, "an imported region moves as a whole"};
  return {};
}

/// Ranges of [offset, offset+size) that are not in the region's parts.
std::vector<Part> gaps_in(const Region& region, Bytes offset, Bytes size) {
  std::vector<Part> gaps;
  Bytes next = offset;
  const Bytes end = offset + size;
  for (const Part& part : region.parts) {
    if (part.offset + part.size <= next) continue;
    if (part.offset >= end) break;
    if (part.offset > next) gaps.push_back({next, part.offset - next});
    next = part.offset + part.size;
  }
  if (next < end) gaps.push_back({next, end - next});
  return gaps;
}

void add_part(Region& region, const Part& part) {
  region.parts.push_back(part);
  std::sort(region.parts.begin(), region.parts.end(),
            [](const Part& a, const Part& b) { return a.offset < b.offset; });
  std::vector<Part> merged;
  for (const Part& p : region.parts) {
    if (!merged.empty() && merged.back().offset + merged.back().size == p.offset) {
      merged.back().size += p.size;
    } else {
      merged.push_back(p);
    }
  }
  region.parts = std::move(merged);
}

/// First steps of shrink and grow: finds the region, marks its tag as moving and checks the range.
class PartMove {
 public:
  PartMove(Arena::Impl& arena, RegionId id) : arena_(arena), id_(id), lock_(arena.table) {}
  /// Returns with the table lock held.
  Status begin(Bytes offset, Bytes size) {
    NEAP_TRY_ASSIGN(region_, find_region(arena_, id_));
    moving_.emplace(arena_, lock_, std::vector<Tag*>{region_->tag});
    NEAP_TRY(moving_->status());
    NEAP_TRY_ASSIGN(region_, find_region(arena_, id_));  // may be destroyed by now
    return check_range(*region_, offset, size);
  }
  [[nodiscard]] Region& region() const { return *region_; }
  [[nodiscard]] std::unique_lock<std::shared_mutex>& lock() { return lock_; }

 private:
  Arena::Impl& arena_;
  RegionId id_;
  std::unique_lock<std::shared_mutex> lock_;
  std::optional<Moving> moving_;
  Region* region_ = nullptr;
};

}  // namespace

Result<MoveReport> Arena::shrink(RegionId id, Bytes offset, Bytes size, const Fence& fence) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  const Stopwatch watch;
  PartMove move(arena, id);
  NEAP_TRY(move.begin(offset, size));
  Region* const region = &move.region();
  auto& lock = move.lock();
  MoveReport report;
  Tag& tag = *region->tag;
  const Address from = region->address + offset.count();
  const Address to = from + size.count();
  if (region->state == State::kPaused) {
    const Bytes unit = arena.device.info().granularity;
    const Bytes first = round_up(offset, unit);
    const Bytes last = round_down(offset + size, unit);
    if (first < last) remove_part(*region, region->address + first.count(), last - first);
    return report;
  }
  if (region->kept)
    return Status(ErrorCode::kBusy, "the region is kept resident; let it go before it shrinks");
  std::vector<std::pair<Address, Page>> leaving;
  for (const auto& [at, page] : slots_touching(tag, from, size)) {
    const Address end = at + page.size.count();
    if (at >= from && end <= to) leaving.emplace_back(at, page);
  }
  if (leaving.empty()) return report;
  Outgoing out;
  out.chunks = cut_chunks(tag, leaving, Bytes(0));
  const RegionInfo info = arena.describe(*region);
  region->state = State::kPausing;
  lock.unlock();

  for (TransferChunk& chunk : out.chunks) chunk.mapped = chunk.pages.size();
  Status status = arena.call_before_unmap({info});
  const bool told = status.ok();
  if (status.ok()) status = wait_for(arena, fence);
  for (TransferChunk& chunk : out.chunks)
    if (status.ok()) status = unmap_chunk(arena, chunk);
  if (!status.ok()) {
    Outgoing::Item item;
    item.region = region;
    out.items.push_back(std::move(item));
    undo(arena, out);
    if (told) arena.notify_still_mapped({info});
    return std::move(status).with_context(format("shrinking a region of {}", info.tag));
  }

  lock.lock();
  for (const auto& [at, page] : leaving) {
    tag.slots.erase(at);
    remove_part(*region, at, page.size);
    report.bytes += page.size;
  }
  region->state = State::kResident;
  region->backup.filled = false;
  lock.unlock();
  arena.store.give(pages_of(out.chunks));
  arena.note_freed_pages();
  report.regions = 1;
  report.seconds = watch.seconds();
  return report;
}

Result<MoveReport> Arena::grow(RegionId id, Bytes offset, Bytes size) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  const Stopwatch watch;
  PartMove move(arena, id);
  NEAP_TRY(move.begin(offset, size));
  Region* const region = &move.region();
  auto& lock = move.lock();
  const Bytes unit = arena.device.info().granularity;
  const Bytes first = round_down(offset, unit);
  const auto gaps = gaps_in(*region, first, round_up(offset + size, unit) - first);
  MoveReport report;
  if (gaps.empty()) return report;
  if (region->state == State::kPaused) {
    for (const Part& gap : gaps) add_part(*region, gap);
    return report;
  }
  Tag& tag = *region->tag;
  std::vector<Run> runs;
  runs.reserve(gaps.size());
  for (const Part& gap : gaps)
    runs.push_back({region->address + gap.offset.count(), gap.size,
                    keeps_contents(region->policy) ? PageUse::kCopied : PageUse::kAgain,
                    tag.page_limit});
  RegionInfo info = arena.describe(*region);
  ++info.generation;
  for (const Part& gap : gaps) info.mapped += gap.size;
  info.state = State::kResuming;
  const bool zero = region->policy == Policy::kZero;
  region->state = State::kResuming;
  lock.unlock();

  const auto fail = [&](Status status) {
    lock.lock();
    region->state = State::kResident;
    return std::move(status).with_context(format("growing a region of {}", info.tag));
  };
  auto chunks =
      fill_runs(arena, tag, runs, [&] { return format("more of a region of {}", info.tag); });
  if (!chunks.ok()) return fail(chunks.status());
  Status status;
  for (const Run& run : runs)
    if (zero && status.ok()) status = arena.device.fill(run.at, run.size, 0);
  if (status.ok()) status = arena.call_after_map({info});
  if (!status.ok()) {
    Incoming failed;
    failed.chunks = std::move(*chunks);
    undo(arena, failed);
    return fail(std::move(status));
  }

  lock.lock();
  enter_slots(*chunks);
  for (const Part& gap : gaps) {
    add_part(*region, gap);
    report.bytes += gap.size;
  }
  ++region->generation;
  region->backup.filled = false;
  region->state = State::kResident;
  report.regions = 1;
  report.seconds = watch.seconds();
  return report;
}

void Arena::set_page_limit(std::string_view name, Bytes most) {
  Impl& arena = *impl_;
  if (!arena.check_process().ok()) return;
  const Bytes unit = arena.device.info().granularity;
  const std::unique_lock lock(arena.table);
  arena.tag_named(name).page_limit = std::max(unit, round_down(most, unit));
}

Result<Bytes> Arena::keep_resident(RegionId id, bool keep) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  PartMove move(arena, id);
  NEAP_TRY(move.begin(Bytes(0), Bytes(0)));
  Region& region = move.region();
  if (!keep) {
    region.kept = false;
    return Bytes(0);
  }
  if (region.state != State::kResident || total(region.parts) != region.size) {
    return Status(
        ErrorCode::kBusy,
        format("a region of {} is not resident as a whole and cannot be kept so; resume it first",
               region.tag->name));
  }
  region.kept = true;
  Bytes stays;
  for (const auto& [at, size] : staying_with(region).slots) stays += size;
  return stays;
}

}  // namespace neap::arena

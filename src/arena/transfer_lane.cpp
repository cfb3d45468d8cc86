#include "arena/transfer_lane.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

bool lies_within(Bytes offset, Bytes size, Bytes whole) {
  return offset <= whole && size <= whole - offset;
}

/// The region of a transfer. Fails unless its ranges exist and are resident. The caller holds the
/// table lock.
Result<Region*> check(const Arena::Impl& arena, const Transfer& t) {
  NEAP_TRY_ASSIGN(Region* const region, find_region(arena, t.region));
  const std::string& tag = region->tag->name;
  if (t.storage == nullptr)
    return Status(ErrorCode::kInvalidArgument, format("a copy of {} names no host storage", tag));
  if (!lies_within(t.storage_offset, t.size, t.storage->size()))
    return Status(ErrorCode::kInvalidArgument, format("{} from {} of host storage of {}", t.size,
                                                      t.storage_offset, t.storage->size()));
  if (!lies_within(t.offset, t.size, region->size))
    return Status(ErrorCode::kInvalidArgument, format("{} from {} of a region of {} of {}", t.size,
                                                      t.offset, tag, region->size));
  if (region->tag->moving || region->state != State::kResident)
    return Status(ErrorCode::kBusy,
                  format("{} is not resident ({})", tag,
                         region->tag->moving ? "it moves" : to_string(region->state)));
  // Parts that shrink() released have no memory.
  for (const Part& part : region->parts) {
    if (part.offset <= t.offset && lies_within(t.offset - part.offset, t.size, part.size))
      return region;
  }
  return Status(ErrorCode::kBusy, format("{} from {} of a region of {} were released by shrink",
                                         t.size, t.offset, tag));
}

}  // namespace

Result<std::unique_ptr<TransferLane>> TransferLane::make(Arena& arena) {
  NEAP_TRY(arena.impl().check_process());
  NEAP_TRY_ASSIGN(auto queue, arena.impl().take_queue());
  return std::unique_ptr<TransferLane>(new TransferLane(arena, std::move(queue)));
}

TransferLane::~TransferLane() {
  if (!arena_.impl().check_process().ok()) {
    (void)queue_.release();  // its threads or streams belong to the parent
    return;
  }
  if (const Status done = drain(); !done.ok()) log::warn(done.message());
  if (held_) (void)queue_->take_held_seconds();  // the caller did not take them
  arena_.impl().give_queue(std::move(queue_));
}

Result<TransferLane::Mark> TransferLane::to_device(std::span<const Transfer> batch) {
  return queue(Direction::kToDevice, batch);
}
Result<TransferLane::Mark> TransferLane::to_storage(std::span<const Transfer> batch) {
  return queue(Direction::kToStorage, batch);
}

Result<TransferLane::Mark> TransferLane::queue(Direction direction,
                                               std::span<const Transfer> batch) {
  Arena::Impl& arena = arena_.impl();
  NEAP_TRY(arena.check_process());
  Batch made;
  std::vector<device::Copy> copies;
  {
    const std::shared_lock lock(arena.table);
    std::vector<Region*> regions;
    for (const Transfer& t : batch) {
      if (t.size.is_zero()) continue;
      NEAP_TRY_ASSIGN(Region* const region, check(arena, t));
      regions.push_back(region);
      made.storages.push_back(t.storage->memory());
      arena.hosts.split({region->address + t.offset.count(),
                         t.storage->data() + t.storage_offset.count(), t.size},
                        copies);
    }
    for (Region* region : regions) {
      ++region->transfers;
      made.regions.push_back(region->id);
    }
  }
  Result<std::uint64_t> mark = push(direction, copies);
  if (!mark.ok()) {
    // Some copies may be queued, and no later mark could tell when they end.
    const Status drained = queue_->drain();
    if (!drained.ok()) log::warn(drained.message());
    retire(made);
    retire_all();
    return Status(mark.status()).with_context("queueing copies of host storage");
  }
  made.mark = Mark{++last_mark_};
  made.queue_mark = *mark;
  under_way(direction).push_back(std::move(made));
  return Mark{last_mark_};
}

Result<std::uint64_t> TransferLane::push(Direction direction,
                                         const std::vector<device::Copy>& copies) {
  const bool to_device = direction == Direction::kToDevice;
  for (const device::Copy& copy : copies)
    NEAP_TRY(to_device ? queue_->to_device(copy) : queue_->to_host(copy));
  return to_device ? queue_->mark_to_device() : queue_->mark_to_host();
}

const TransferLane::Batch* TransferLane::find(Mark mark) const {
  for (const std::deque<Batch>& batches : under_way_)
    for (const Batch& batch : batches)
      if (batch.mark == mark) return &batch;
  return nullptr;
}

Status TransferLane::wait(Mark mark) {
  for (std::deque<Batch>& batches : under_way_) {
    const bool here = std::any_of(batches.begin(), batches.end(),
                                  [&](const Batch& batch) { return batch.mark == mark; });
    // Wait in order, so that the queue forgets every mark.
    while (here && !batches.empty() && batches.front().mark <= mark) {
      if (Status done = queue_->wait(batches.front().queue_mark); !done.ok()) {
        const Status drained = drain();
        if (!drained.ok()) log::warn(drained.message());
        return std::move(done).with_context("waiting for copies of host storage");
      }
      retire(batches.front());
      batches.pop_front();
    }
  }
  return {};
}

Status TransferLane::drain() {
  NEAP_TRY(arena_.impl().check_process());
  Status done = queue_->drain();
  retire_all();
  return done;
}

Status TransferLane::begin_after(device::StreamId stream) {
  NEAP_TRY(arena_.impl().check_process());
  return queue_->begin_after(stream);
}

Status TransferLane::hold_stream(device::StreamId stream, Mark mark, std::size_t account) {
  NEAP_TRY(arena_.impl().check_process());
  const Batch* const batch = find(mark);
  if (batch == nullptr) return {};
  held_ = true;
  return queue_->hold_stream(stream, batch->queue_mark, account);
}

Result<std::vector<double>> TransferLane::take_held_seconds() {
  NEAP_TRY(arena_.impl().check_process());
  held_ = false;
  return queue_->take_held_seconds();
}

Status TransferLane::hold_other_direction(Mark mark) {
  NEAP_TRY(arena_.impl().check_process());
  const Batch* const batch = find(mark);
  return batch == nullptr ? Status() : queue_->hold_other_direction(batch->queue_mark);
}

void TransferLane::retire(const Batch& batch) {
  Arena::Impl& arena = arena_.impl();
  const std::shared_lock lock(arena.table);
  for (const RegionId id : batch.regions)
    --arena.regions.at(static_cast<std::uint64_t>(id))->transfers;
}

void TransferLane::retire_all() {
  for (std::deque<Batch>& batches : under_way_) {
    for (const Batch& batch : batches) retire(batch);
    batches.clear();
  }
}

}  // namespace neap::arena

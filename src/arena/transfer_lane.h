// Copies between resident regions and host storage, queued in order. The device's copy engines run
// them while the caller continues.
//
// Model     A region stays where it is until the caller has waited for all its copies: pause,
//           resume, exchange, destroy and similar calls for its tag return kBusy. Copies of one
//           direction run in queue order; the two directions run concurrently. The caller keeps
//           apart ranges that copies of both directions touch.
//
// Threads   one at a time. Other lanes and moves of other tags may run meanwhile.
//
// Failure   Nothing of a batch is queued if a range is wrong (kInvalidArgument, kNotFound) or a
//           region is not resident (kBusy). After a driver failure no copy of the lane is in
//           flight. Destinations of copies since the last wait are undefined.
//
// Cost      a lookup for each copy and a driver call per 128 MiB of it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "arena/host_storage.h"

namespace neap::arena {

/// `size` bytes from `offset` of a region, and from `storage_offset` of a storage.
struct Transfer {
  RegionId region = RegionId::kNone;
  Bytes offset;
  const HostStorage* storage = nullptr;
  Bytes storage_offset;
  Bytes size;
};

class TransferLane {
 public:
  /// The end of a batch.
  enum class Mark : std::uint64_t {};

  /// `arena` outlives the lane. Cost: two streams of the device, unless a destroyed lane left some.
  [[nodiscard]] static Result<std::unique_ptr<TransferLane>> make(Arena& arena);
  /// Waits for all copies.
  ~TransferLane();
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  [[nodiscard]] Result<Mark> to_device(std::span<const Transfer> batch);
  [[nodiscard]] Result<Mark> to_storage(std::span<const Transfer> batch);
  /// Blocks until the batch, and earlier batches of its direction, are done. A mark may be waited
  /// for again.
  Status wait(Mark mark);
  /// Blocks until every batch is done.
  Status drain();

  /// Batches queued from now on begin after the work that `stream` already has.
  Status begin_after(device::StreamId stream);
  /// Work given to `stream` from now on begins after the batch. The caller must still wait for the
  /// batch, which costs nothing once it is done. The stream's waiting time is added to `account`, a
  /// small number.
  Status hold_stream(device::StreamId stream, Mark mark, std::size_t account);
  /// Seconds that streams waited in hold_stream since the last call, by account. Blocks until these
  /// waits have ended.
  [[nodiscard]] Result<std::vector<double>> take_held_seconds();
  /// Batches of the other direction queued from now on begin after the batch. For a part of a
  /// region that is stored and then overwritten. The caller must still wait for the batch.
  Status hold_other_direction(Mark mark);

 private:
  enum class Direction : std::uint8_t { kToDevice = 0, kToStorage = 1 };
  struct Batch {
    Mark mark{};
    std::uint64_t queue_mark = 0;
    std::vector<RegionId> regions;
    std::vector<std::shared_ptr<HostStorage::Memory>> storages;
  };

  TransferLane(Arena& arena, std::unique_ptr<device::CopyQueue> queue)
      : arena_(arena), queue_(std::move(queue)) {}
  [[nodiscard]] Result<Mark> queue(Direction direction, std::span<const Transfer> batch);
  [[nodiscard]] Result<std::uint64_t> push(Direction direction,
                                           const std::vector<device::Copy>& copies);
  /// The batches up to the mark, if they are still running.
  [[nodiscard]] const Batch* find(Mark mark) const;
  void retire(const Batch& batch);
  void retire_all();
  [[nodiscard]] std::deque<Batch>& under_way(Direction direction) {
    return under_way_[static_cast<std::size_t>(direction)];
  }

  Arena& arena_;
  std::unique_ptr<device::CopyQueue> queue_;
  std::deque<Batch> under_way_[2];
  std::uint64_t last_mark_ = 0;
  bool held_ = false;  // a stream was held since seconds were last taken
};

}  // namespace neap::arena

#include "bridge/staging_windows.h"

#include <chrono>
#include <utility>

namespace neap::bridge {

Status wait_counted(arena::DiskLane::Batch& batch, LinkUse& use) {
  const auto begin = std::chrono::steady_clock::now();
  Status done = batch.wait();
  use.disk_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return done;
}

StagingWindows::StagingWindows(arena::Arena& arena, SlotLane& lane, arena::DiskLane& disk,
                               const std::string& tag, std::size_t count, Bytes bytes)
    : lane_(lane),
      disk_(disk),
      bytes_(bytes),
      memory_(value_or_throw(arena::HostStorage::make(arena, tag, bytes * count))),
      windows_(count) {}

std::vector<arena::DiskRange> StagingWindows::in_memory(std::size_t window,
                                                        std::span<const Range> ranges) const {
  std::vector<arena::DiskRange> out;
  for (const Range& range : ranges)
    out.push_back({range.file, range.offset,
                   memory_->data() + (bytes_ * window + range.in_window).count(), range.size});
  return out;
}

std::vector<arena::Transfer> StagingWindows::transfers(std::size_t window,
                                                       std::span<const Piece> pieces) const {
  std::vector<arena::Transfer> out;
  for (const Piece& piece : pieces)
    out.push_back(
        {piece.region, piece.offset, memory_.get(), bytes_ * window + piece.in_window, piece.size});
  return out;
}

Status StagingWindows::read(std::size_t window, std::span<const Range> ranges) {
  Window& w = windows_[window];
  NEAP_TRY(wait_for_write(window));
  NEAP_TRY(wait_for_fetch(window));
  for (const Range& range : ranges) w.coming += range.size;
  if (!ranges.empty()) w.reading = disk_.read(in_memory(window, ranges));
  return {};
}

Status StagingWindows::wait_for_read(std::size_t window) {
  use_.disk_read += std::exchange(windows_[window].coming, Bytes());
  return wait_counted(windows_[window].reading, use_);
}

Status StagingWindows::drop_read(std::size_t window) {
  windows_[window].coming = Bytes();
  return windows_[window].reading.wait();
}

Status StagingWindows::fetch(std::size_t window, std::size_t slot, step::StreamedKind kind,
                             std::span<const Piece> pieces, SlotLane::After after) {
  NEAP_TRY_ASSIGN(windows_[window].fetched,
                  lane_.fetch(slot, kind, transfers(window, pieces), after));
  return {};
}

Status StagingWindows::store(std::size_t window, std::size_t slot, step::StreamedKind kind,
                             std::span<const Piece> pieces) {
  NEAP_TRY(wait_for_write(window));
  NEAP_TRY_ASSIGN(windows_[window].stored, lane_.store(slot, kind, transfers(window, pieces)));
  return {};
}

Status StagingWindows::write(std::size_t window, std::span<const Range> ranges) {
  Window& w = windows_[window];
  if (w.stored) NEAP_TRY(lane_.wait(*w.stored));
  for (const Range& range : ranges) use_.disk_written += range.size;
  w.writing = disk_.write(in_memory(window, ranges));
  return {};
}

Status StagingWindows::wait_for_write(std::size_t window) {
  return wait_counted(windows_[window].writing, use_);
}

Status StagingWindows::wait_for_fetch(std::size_t window) {
  const std::optional<SlotLane::Mark>& fetched = windows_[window].fetched;
  return fetched ? lane_.wait(*fetched) : Status();
}

Status StagingWindows::close() {
  Status first;
  for (std::size_t window = 0; window < windows_.size(); ++window) {
    (void)drop_read(window);  // it is not needed any more
    Status done = wait_for_write(window);
    if (first.ok()) first = std::move(done);
  }
  return first;
}

LinkUse StagingWindows::take_use() {
  return std::exchange(use_, {});
}

}  // namespace neap::bridge

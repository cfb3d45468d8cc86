#include "bridge/streamed_blocks.h"

#include <chrono>
#include <span>
#include <utility>

#include "base/format.h"

namespace neap::bridge {
namespace {

constexpr device::StreamId kComputes = device::StreamId::kDefault;
// The lane remembers a copy until it was waited for. One so many copies back has long been used.
constexpr std::size_t kMostRemembered = 8;

}  // namespace

StreamedBlocks::StreamedBlocks(arena::Arena& arena, const std::string& tag, std::vector<Slot> slots,
                               const std::vector<Bytes>& blocks, Bytes table)
    : slots_(std::move(slots)),
      lane_(value_or_throw(arena::TransferLane::make(arena))),
      window_(blocks.size(), slots_.size()),
      arrival_(slots_.size()) {
  for (const Bytes bytes : blocks)
    storage_.push_back(value_or_throw(arena::HostStorage::make(arena, tag, bytes)));
  if (!table.is_zero()) table_ = value_or_throw(arena::HostStorage::make(arena, tag, table));
}

void StreamedBlocks::open() {
  window_.forget();
  failed_ = {};
}

Status StreamedBlocks::close() {
  not_waited_for_.clear();
  Status drained = lane_->drain();
  Status failed = std::exchange(failed_, {});
  window_.forget();
  return failed.ok() ? drained : failed;
}

void StreamedBlocks::expect(step::Sweep sweep, std::int64_t passes) {
  window_.expect(sweep, passes);
  throw_if_error(bring_expected());
}

std::size_t StreamedBlocks::use(std::size_t block) {
  throw_if_error(failed_);
  const step::BlockWindow::Use use = window_.use(block);
  if (use.missing) throw_if_error(bring({block, use.slot}));
  const auto start = std::chrono::steady_clock::now();
  throw_if_error(lane_->hold_stream(kComputes, arrival_[use.slot]));
  use_.wait_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return use.slot;
}

void StreamedBlocks::release(std::size_t block) noexcept {
  window_.release(block);
  // What the device was given so far may read the slot that the next block comes to.
  Status status = lane_->begin_after(kComputes);
  if (status.ok()) status = bring_expected();
  if (failed_.ok()) failed_ = std::move(status);
}

Status StreamedBlocks::bring_expected() {
  while (const auto place = window_.next_to_bring()) NEAP_TRY(bring(*place));
  return {};
}

Status StreamedBlocks::bring(step::BlockWindow::Place place) {
  const Slot& slot = slots_[place.slot];
  const arena::HostStorage& from = *storage_[place.block];
  const arena::Transfer copy{slot.region, slot.offset, &from, Bytes(), from.size()};
  NEAP_TRY_ASSIGN(const arena::TransferLane::Mark mark, lane_->to_device(std::span(&copy, 1)));
  arrival_[place.slot] = mark;
  use_.fetched += from.size();
  not_waited_for_.push_back(mark);
  if (not_waited_for_.size() <= kMostRemembered) return {};
  NEAP_TRY(lane_->wait(not_waited_for_.front()));
  not_waited_for_.pop_front();
  return {};
}

}  // namespace neap::bridge

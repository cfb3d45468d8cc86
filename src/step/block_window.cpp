#include "step/block_window.h"

#include <algorithm>

namespace neap::step {
namespace {

bool contains(const std::vector<std::size_t>& list, std::size_t block) {
  return std::find(list.begin(), list.end(), block) != list.end();
}

std::int64_t uses_of(Sweep sweep, std::size_t blocks) {
  return static_cast<std::int64_t>(sweep == Sweep::kForward ? blocks : 2 * blocks);
}

}  // namespace

BlockWindow::BlockWindow(std::size_t blocks, std::size_t slots, bool trained, Breaks breaks)
    : blocks_(blocks), slots_(slots), trained_(trained), breaks_(breaks), started_(blocks, false) {}

void BlockWindow::expect(Sweep sweep, std::int64_t passes) {
  sweep_ = sweep;
  next_ = cleared_at_ = 0;
  end_ = passes * uses_of(sweep, blocks_);
  if (sweep == Sweep::kForwardBackward) std::fill(started_.begin(), started_.end(), false);
}

BlockWindow::Expected BlockWindow::expected_at(std::int64_t place) const {
  const auto i = static_cast<std::size_t>(place % uses_of(sweep_, blocks_));
  if (i < blocks_) return {i, BlockUse::kRead};
  return {2 * blocks_ - 1 - i, BlockUse::kAddGradients};
}

bool BlockWindow::is_break(std::int64_t place) const {
  const auto blocks = static_cast<std::int64_t>(blocks_);
  if (place % blocks != 0 || place == cleared_at_) return false;
  const bool back = sweep_ == Sweep::kForwardBackward && place / blocks % 2 == 0;
  return back ? breaks_.after_backward : breaks_.after_forward;
}

std::vector<std::size_t> BlockWindow::soon() const {
  std::vector<std::size_t> out;
  for (const Slot& slot : slots_)
    if (slot.used) out.push_back(*slot.block);
  for (std::int64_t place = next_; place < end_ && out.size() < slots_.size(); ++place) {
    if (is_break(place)) break;
    const std::size_t block = expected_at(place).block;
    if (!contains(out, block)) out.push_back(block);
    // A model of fewer blocks than slots.
    if (place - next_ > uses_of(sweep_, blocks_)) break;
  }
  return out;
}

bool BlockWindow::needs_gradients(std::size_t block) const {
  if (!trained_ || !started_[block]) return false;
  const std::int64_t last = std::min(end_, next_ + uses_of(sweep_, blocks_));
  for (std::int64_t place = next_; place < last; ++place) {
    const Expected expected = expected_at(place);
    if (expected.block == block) return expected.how == BlockUse::kAddGradients;
  }
  return false;
}

BlockWindow::Slot* BlockWindow::holder_of(std::size_t block) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.block == block; });
  return found == slots_.end() ? nullptr : &*found;
}

BlockWindow::Slot* BlockWindow::free_slot(const std::vector<std::size_t>& keep) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    const bool is_free = !slot.used && !(slot.block && contains(keep, *slot.block));
    if (is_free && (best == nullptr || slot.last_use < best->last_use)) best = &slot;
  }
  return best;
}

void BlockWindow::put(Slot& slot, std::size_t block) {
  slot.block = block;
  slot.gradients = false;
}

std::optional<BlockWindow::Place> BlockWindow::next_to_bring() {
  const std::vector<std::size_t> wanted = soon();
  for (const std::size_t block : wanted) {
    Slot* slot = holder_of(block);
    const bool here = slot != nullptr;
    if (here && (slot->gradients || slot->adds || !needs_gradients(block))) continue;
    if (!here) {
      slot = free_slot(wanted);
      if (slot == nullptr) return std::nullopt;
      put(*slot, block);
    }
    slot->gradients = needs_gradients(block);
    return Place{block, static_cast<std::size_t>(slot - slots_.data()), !here, slot->gradients};
  }
  return std::nullopt;
}

BlockWindow::Use BlockWindow::use(std::size_t block, BlockUse how) {
  Use out;
  const bool expected = next_ < end_ && expected_at(next_).block == block;
  out.last = expected && end_ - next_ <= static_cast<std::int64_t>(blocks_);
  next_ = expected ? next_ + 1 : end_;
  Slot* slot = holder_of(block);
  out.weights = slot == nullptr;
  if (slot == nullptr) {
    slot = free_slot(soon());
    if (slot == nullptr) slot = free_slot({});
    put(*slot, block);
  }
  slot->used = true;
  slot->last_use = ++uses_;
  slot->adds = trained_ && how == BlockUse::kAddGradients;
  if (slot->adds) {
    out.zero = !started_[block];
    out.gradients = started_[block] && !slot->gradients;
  } else {
    out.last = false;
  }
  out.slot = static_cast<std::size_t>(slot - slots_.data());
  return out;
}

std::optional<std::size_t> BlockWindow::release(std::size_t block) {
  Slot& slot = *holder_of(block);
  const bool added = slot.adds;
  slot.used = slot.adds = false;
  if (!added) return std::nullopt;
  started_[block] = true;
  slot.gradients = false;
  return static_cast<std::size_t>(&slot - slots_.data());
}

void BlockWindow::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  cleared_at_ = next_;
}

void BlockWindow::forget() {
  clear();
  next_ = end_ = cleared_at_ = 0;
}

}  // namespace neap::step

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

BlockWindow::BlockWindow(std::size_t blocks, std::size_t slots) : blocks_(blocks), slots_(slots) {}

void BlockWindow::expect(Sweep sweep, std::int64_t passes) {
  sweep_ = sweep;
  next_ = 0;
  end_ = passes * uses_of(sweep, blocks_);
}

std::size_t BlockWindow::expected_at(std::int64_t place) const {
  const auto i = static_cast<std::size_t>(place % uses_of(sweep_, blocks_));
  return i < blocks_ ? i : 2 * blocks_ - 1 - i;
}

std::vector<std::size_t> BlockWindow::soon() const {
  std::vector<std::size_t> out;
  for (const Slot& slot : slots_)
    if (slot.used) out.push_back(*slot.block);
  for (std::int64_t place = next_; place < end_ && out.size() < slots_.size(); ++place) {
    const std::size_t block = expected_at(place);
    if (!contains(out, block)) out.push_back(block);
    // A model of fewer blocks than slots.
    if (place - next_ > uses_of(sweep_, blocks_)) break;
  }
  return out;
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

std::optional<BlockWindow::Place> BlockWindow::next_to_bring() {
  const std::vector<std::size_t> wanted = soon();
  for (const std::size_t block : wanted) {
    if (holder_of(block) != nullptr) continue;
    Slot* const slot = free_slot(wanted);
    if (slot == nullptr) return std::nullopt;
    slot->block = block;
    return Place{block, static_cast<std::size_t>(slot - slots_.data())};
  }
  return std::nullopt;
}

BlockWindow::Use BlockWindow::use(std::size_t block) {
  if (next_ < end_ && expected_at(next_) == block) {
    ++next_;
  } else {
    next_ = end_;
  }
  Slot* slot = holder_of(block);
  const bool missing = slot == nullptr;
  if (missing) {
    slot = free_slot(soon());
    if (slot == nullptr) slot = free_slot({});
    slot->block = block;
  }
  slot->used = true;
  slot->last_use = ++uses_;
  return {static_cast<std::size_t>(slot - slots_.data()), missing};
}

void BlockWindow::release(std::size_t block) {
  holder_of(block)->used = false;
}

void BlockWindow::forget() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  next_ = end_ = 0;
}

}  // namespace neap::step

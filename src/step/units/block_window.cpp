#include "step/units/block_window.h"

#include <algorithm>

namespace neap::step {
namespace {

bool contains(const std::vector<std::size_t>& list, std::size_t block) {
  return std::find(list.begin(), list.end(), block) != list.end();
}

bool adds(BlockUse how) {
  return how == BlockUse::kAddGradients || how == BlockUse::kAddLater;
}

bool reads_inputs(BlockUse how) {
  return how == BlockUse::kAddGradients || how == BlockUse::kReadBack;
}

std::int64_t uses_of(Sweep sweep, std::size_t blocks) {
  return static_cast<std::int64_t>(sweep == Sweep::kForwardBackward ? 2 * blocks : blocks);
}

}  // namespace

BlockWindow::BlockWindow(std::size_t blocks, std::size_t slots, WithBlocks with, Breaks breaks)
    : blocks_(blocks),
      slots_(slots),
      with_(with),
      all_breaks_(breaks),
      breaks_(breaks),
      added_(blocks, 0),
      kept_(blocks, 0),
      read_(blocks, 0) {}

void BlockWindow::begin_mini_batch(std::int64_t passes_back) {
  for (std::vector<std::int64_t>* counts : {&added_, &kept_, &read_})
    std::fill(counts->begin(), counts->end(), 0);
  passes_back_ = passes_back;
}

void BlockWindow::expect(Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) {
  first_ = static_cast<std::size_t>(chunk.blocks.first);
  blocks_ = static_cast<std::size_t>(chunk.blocks.count);
  breaks_ = {all_breaks_.at_start && chunk.embeds, all_breaks_.after_forward && chunk.has_head,
             all_breaks_.after_backward && chunk.embeds};
  // Each block keeps the slot of the first part, whose weights are not needed in this part. Tables
  // were used in the first part.
  if (sweep == Sweep::kBackwardWeights) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    breaks_ = {};
  }
  sweep_ = sweep;
  next_ = 0;
  cleared_at_ = breaks_at_start() ? -1 : 0;
  end_ = passes * uses_of(sweep, blocks_);
  if (sweep == Sweep::kForwardBackward) begin_mini_batch(passes);
}

BlockWindow::Expected BlockWindow::expected_at(std::int64_t place) const {
  const auto i = static_cast<std::size_t>(place % uses_of(sweep_, blocks_));
  if (!starts_forward()) {
    const BlockUse how = sweep_ == Sweep::kBackward        ? BlockUse::kAddGradients
                         : sweep_ == Sweep::kBackwardInput ? BlockUse::kReadBack
                                                           : BlockUse::kAddLater;
    return {first_ + blocks_ - 1 - i, how};
  }
  if (i < blocks_) return {first_ + i, BlockUse::kRead};
  return {first_ + 2 * blocks_ - 1 - i, BlockUse::kAddGradients};
}

bool BlockWindow::is_break(std::int64_t place) const {
  const auto blocks = static_cast<std::int64_t>(blocks_);
  if (place % blocks != 0 || place == cleared_at_) return false;
  if (place == 0) return breaks_at_start();
  if (sweep_ == Sweep::kForwardBackward && place / blocks % 2 == 1) return breaks_.after_forward;
  // One pass ends, and the next one begins.
  const bool behind = sweep_ == Sweep::kForward ? breaks_.after_forward : breaks_.after_backward;
  return behind || breaks_at_start();
}

std::vector<std::size_t> BlockWindow::soon() const {
  std::vector<std::size_t> out;
  for (const Slot& slot : slots_)
    if (slot.used) out.push_back(*slot.block);
  for (std::int64_t place = next_; place < end_ && out.size() < slots_.size(); ++place) {
    if (is_break(place)) break;
    const std::size_t block = expected_at(place).block;
    if (!contains(out, block)) out.push_back(block);
    // For models with fewer blocks than slots.
    if (place - next_ > uses_of(sweep_, blocks_)) break;
  }
  return out;
}

BlockUse BlockWindow::next_use(std::size_t block) const {
  const std::int64_t last = std::min(end_, next_ + uses_of(sweep_, blocks_));
  for (std::int64_t place = next_; place < last; ++place) {
    const Expected expected = expected_at(place);
    if (expected.block == block) return expected.how;
  }
  return BlockUse::kRead;
}

bool BlockWindow::has_inputs(std::size_t block, const Slot* slot) const {
  return slot != nullptr && slot->inputs && slot->pass == read_[block];
}

BlockWindow::Place BlockWindow::lacking(std::size_t block, const Slot* slot) const {
  Place out{block, 0, sweep_ != Sweep::kBackwardWeights && !(slot != nullptr && slot->weights)};
  const bool started = with_.gradients && added_[block] > 0;
  if (!started && !with_.inputs) return out;
  const BlockUse how = next_use(block);
  out.gradients = started && adds(how) && !(slot != nullptr && (slot->gradients || slot->adds));
  out.inputs = with_.inputs && reads_inputs(how) && !has_inputs(block, slot);
  out.pass = read_[block];
  return out;
}

BlockWindow::Slot* BlockWindow::holder_of(std::size_t block) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.block == block; });
  return found == slots_.end() ? nullptr : &*found;
}

BlockWindow::Slot* BlockWindow::free_slot(const std::vector<std::size_t>& keep,
                                          std::optional<std::size_t> block) {
  const auto is_free = [&](const Slot& slot) {
    return !slot.used && !(slot.block && contains(keep, *slot.block));
  };
  if (block && is_free(slots_[*block % slots_.size()])) return &slots_[*block % slots_.size()];
  Slot* best = nullptr;
  for (Slot& slot : slots_)
    if (is_free(slot) && (best == nullptr || slot.last_use < best->last_use)) best = &slot;
  return best;
}

void BlockWindow::put(Slot& slot, std::size_t block) {
  slot.block = block;
  slot.weights = slot.gradients = slot.inputs = false;
}

std::optional<BlockWindow::Place> BlockWindow::next_to_bring() {
  const std::vector<std::size_t> wanted = soon();
  for (const std::size_t block : wanted) {
    Slot* slot = holder_of(block);
    Place place = lacking(block, slot);
    if (!place.any()) continue;
    if (slot == nullptr) {
      slot = free_slot(wanted, block);
      if (slot == nullptr) return std::nullopt;
      put(*slot, block);
    }
    slot->weights = slot->weights || place.weights;
    slot->gradients = slot->gradients || place.gradients;
    if (place.inputs) {
      slot->inputs = true;
      slot->pass = place.pass;
    }
    place.slot = static_cast<std::size_t>(slot - slots_.data());
    return place;
  }
  return std::nullopt;
}

std::optional<std::size_t> BlockWindow::brought_then() const {
  const std::int64_t last = std::min(end_, next_ + uses_of(sweep_, blocks_));
  for (std::int64_t place = next_; place < last && !is_break(place); ++place) {
    const std::size_t block = expected_at(place).block;
    const bool here = std::any_of(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.block == block; });
    if (!here) return block;
  }
  return std::nullopt;
}

BlockWindow::Use BlockWindow::use(std::size_t block, BlockUse how) {
  Use out;
  const bool expected = next_ < end_ && expected_at(next_).block == block;
  next_ = expected ? next_ + 1 : end_;
  Slot* slot = holder_of(block);
  if (slot == nullptr) {
    slot = free_slot(soon(), expected ? std::optional(block) : std::nullopt);
    if (slot == nullptr) slot = free_slot({});
    put(*slot, block);
  }
  out.missing = {block, 0, how != BlockUse::kAddLater && !slot->weights};
  slot->weights = slot->weights || out.missing.weights;
  slot->used = true;
  slot->last_use = ++uses_;
  slot->adds = with_.gradients && adds(how);
  slot->completes = slot->adds && added_[block] + 1 == passes_back_;
  slot->keeps = with_.inputs && how == BlockUse::kKeepInputs;
  if (slot->adds) {
    out.zero = added_[block] == 0;
    out.last = slot->completes;
    out.missing.gradients = !out.zero && !slot->gradients;
  }
  slot->reads = with_.inputs && reads_inputs(how);
  out.missing.inputs = slot->reads && !has_inputs(block, slot);
  out.missing.pass = read_[block];
  slot->inputs = slot->reads || slot->keeps;
  slot->pass = slot->keeps ? kept_[block] : read_[block];
  out.missing.slot = static_cast<std::size_t>(slot - slots_.data());
  return out;
}

BlockWindow::Leaving BlockWindow::release(std::size_t block) {
  Slot& slot = *holder_of(block);
  const Leaving out{static_cast<std::size_t>(&slot - slots_.data()), slot.adds, slot.keeps,
                    slot.completes, slot.pass};
  if (slot.adds) {
    ++added_[block];
    slot.gradients = false;
  }
  // Inputs are not needed after their backward.
  slot.inputs = slot.keeps;
  if (slot.keeps) ++kept_[block];
  if (slot.reads) ++read_[block];
  slot.used = slot.adds = slot.completes = slot.keeps = slot.reads = false;
  return out;
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

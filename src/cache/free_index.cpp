#include "cache/free_index.h"

#include <algorithm>
#include <cstring>

namespace neap::cache {

std::size_t FreeIndex::find_run(std::uint64_t size, std::uint64_t address) const {
  std::size_t low = 0;
  std::size_t high = runs_.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const Slot& slot = runs_[middle];
    if (slot.size != size ? slot.size < size : slot.address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

FreeIndex::Cursor FreeIndex::lower_bound(std::uint64_t size, std::uint64_t address) const {
  const std::size_t run = find_run(size, address);
  if (run == runs_.size()) return end();
  const Run& keys = *runs_[run].run;
  std::size_t low = 0;
  std::size_t high = keys.count;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (keys.keys[middle].before(size, address))
      low = middle + 1;
    else
      high = middle;
  }
  return {run, low};
}

FreeIndex::Run* FreeIndex::take_run() {
  if (spare_.empty()) {
    owned_.push_back(std::make_unique<Run>());
    spare_.reserve(owned_.capacity());
    return owned_.back().get();
  }
  Run* run = spare_.back();
  spare_.pop_back();
  run->count = 0;
  return run;
}

void FreeIndex::drop_run(std::size_t run) {
  spare_.push_back(runs_[run].run);
  runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(run));
}

void FreeIndex::insert(const Key& key) {
  ++count_;
  if (runs_.empty()) {
    Run* run = take_run();
    run->keys[0] = key;
    run->count = 1;
    runs_.push_back({key.size, key.address, run});
    return;
  }
  Cursor at = lower_bound(key.size, key.address);
  if (at == end()) at = {runs_.size() - 1, runs_.back().run->count};
  Run* run = runs_[at.run].run;
  if (run->count == kRunLength) {
    Run* upper = take_run();
    constexpr std::size_t kHalf = kRunLength / 2;
    std::memcpy(upper->keys, run->keys + kHalf, (kRunLength - kHalf) * sizeof(Key));
    upper->count = kRunLength - kHalf;
    run->count = kHalf;
    runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(at.run) + 1, Slot{0, 0, upper});
    refresh(at.run);
    refresh(at.run + 1);
    if (at.slot > kHalf) {
      ++at.run;
      at.slot -= kHalf;
      run = upper;
    }
  }
  std::memmove(run->keys + at.slot + 1, run->keys + at.slot, (run->count - at.slot) * sizeof(Key));
  run->keys[at.slot] = key;
  ++run->count;
  if (at.slot + 1 == run->count) refresh(at.run);
}

void FreeIndex::erase(Cursor at) {
  --count_;
  Run* run = runs_[at.run].run;
  std::memmove(run->keys + at.slot, run->keys + at.slot + 1,
               (run->count - at.slot - 1) * sizeof(Key));
  if (--run->count == 0) {
    drop_run(at.run);
    return;
  }
  if (at.slot == run->count) refresh(at.run);
  // Merge two short neighbours into one run, so that the number of runs is proportional to the
  // number of entries.
  if (run->count >= kRunLength / 4 || at.run + 1 >= runs_.size()) return;
  Run* next = runs_[at.run + 1].run;
  if (run->count + next->count > kRunLength / 2) return;
  std::memcpy(run->keys + run->count, next->keys, next->count * sizeof(Key));
  run->count += next->count;
  drop_run(at.run + 1);
  refresh(at.run);
}

bool FreeIndex::erase(std::uint64_t size, std::uint64_t address) {
  const Cursor at = lower_bound(size, address);
  if (at == end() || (*this)[at].size != size || (*this)[at].address != address) return false;
  erase(at);
  return true;
}

}  // namespace neap::cache

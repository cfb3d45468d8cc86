// A hash map from address to value with open addressing. A value equal to Value{} means "none".
//
// Threads   the caller locks.
// Cost      one or two cache lines; a rehash when the count doubles.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace neap::cache {

template <class Value>
class AddressMap {
 public:
  AddressMap() { slots_.resize(kFirst); }

  [[nodiscard]] Value find(std::uint64_t address) const {
    for (std::size_t at = home(address);; at = (at + 1) & mask()) {
      if (slots_[at].value == Value{}) return Value{};
      if (slots_[at].address == address) return slots_[at].value;
    }
  }
  /// `address` must not be in the map.
  void insert(std::uint64_t address, Value value) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    place(address, value);
    ++count_;
  }
  /// Removes and returns the value; Value{} if the map has none.
  Value take(std::uint64_t address) {
    std::size_t at = home(address);
    while (slots_[at].address != address || slots_[at].value == Value{}) {
      if (slots_[at].value == Value{}) return Value{};
      at = (at + 1) & mask();
    }
    const Value value = slots_[at].value;
    // Moves later entries of the same cluster back, so that no tombstones are needed.
    for (std::size_t next = (at + 1) & mask(); slots_[next].value != Value{};
         next = (next + 1) & mask()) {
      if (((next - home(slots_[next].address)) & mask()) >= ((next - at) & mask())) {
        slots_[at] = slots_[next];
        at = next;
      }
    }
    slots_[at] = {};
    --count_;
    return value;
  }
  [[nodiscard]] std::size_t size() const { return count_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (slot.value != Value{}) visit(slot.address, slot.value);
  }

 private:
  static constexpr std::size_t kFirst = 1024;
  struct Slot {
    std::uint64_t address = 0;
    Value value{};
  };
  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  [[nodiscard]] std::size_t home(std::uint64_t address) const {
    return static_cast<std::size_t>((address >> 9) * 0x9E3779B97F4A7C15ull >>
                                    (64 - std::countr_zero(slots_.size())));
  }
  void place(std::uint64_t address, Value value) {
    std::size_t at = home(address);
    while (slots_[at].value != Value{}) at = (at + 1) & mask();
    slots_[at] = {address, value};
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.value != Value{}) place(slot.address, slot.value);
  }
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace neap::cache

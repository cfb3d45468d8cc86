// Free blocks sorted by (size, address) in short runs, for best fit with lower_bound.
//
// Threads   the caller locks.
// Cost      find, insert and erase take two binary searches and move at most 1 KiB. They allocate
//           only when the number of entries exceeds its previous maximum.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace neap::cache {

struct Block;

class FreeIndex {
 public:
  struct Key {
    std::uint64_t size = 0;
    std::uint64_t address = 0;
    Block* block = nullptr;
    [[nodiscard]] bool before(std::uint64_t other_size, std::uint64_t other_address) const {
      return size != other_size ? size < other_size : address < other_address;
    }
  };
  /// A position in the order. Any insert or erase invalidates it.
  struct Cursor {
    std::size_t run = 0;
    std::size_t slot = 0;
    bool operator==(const Cursor&) const = default;
  };

  FreeIndex() = default;
  FreeIndex(const FreeIndex&) = delete;
  FreeIndex& operator=(const FreeIndex&) = delete;

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] std::size_t size() const { return count_; }
  /// First entry at or after (size, address); end() if none.
  [[nodiscard]] Cursor lower_bound(std::uint64_t size, std::uint64_t address) const;
  [[nodiscard]] Cursor begin() const { return {}; }
  [[nodiscard]] Cursor end() const { return {runs_.size(), 0}; }
  [[nodiscard]] Cursor next(Cursor at) const {
    return at.slot + 1 < runs_[at.run].run->count ? Cursor{at.run, at.slot + 1}
                                                  : Cursor{at.run + 1, 0};
  }
  /// The entry before `at`; `at` is not begin().
  [[nodiscard]] Cursor previous(Cursor at) const {
    return at.slot > 0 ? Cursor{at.run, at.slot - 1}
                       : Cursor{at.run - 1, runs_[at.run - 1].run->count - 1};
  }
  [[nodiscard]] const Key& operator[](Cursor at) const { return runs_[at.run].run->keys[at.slot]; }

  void insert(const Key& key);
  void erase(Cursor at);
  /// Removes the entry of exactly (size, address); false if none exists.
  bool erase(std::uint64_t size, std::uint64_t address);

 private:
  static constexpr std::size_t kRunLength = 48;
  struct Run {
    std::size_t count = 0;
    Key keys[kRunLength];
  };
  /// A run and its last key. Keys are stored here so that the search over runs reads one array.
  struct Slot {
    std::uint64_t size;
    std::uint64_t address;
    Run* run;
  };
  void refresh(std::size_t run) {
    const Key& last = runs_[run].run->keys[runs_[run].run->count - 1];
    runs_[run].size = last.size;
    runs_[run].address = last.address;
  }
  [[nodiscard]] std::size_t find_run(std::uint64_t size, std::uint64_t address) const;
  Run* take_run();
  void drop_run(std::size_t run);

  std::vector<Slot> runs_;
  std::vector<std::unique_ptr<Run>> owned_;
  std::vector<Run*> spare_;
  std::size_t count_ = 0;
};

}  // namespace neap::cache

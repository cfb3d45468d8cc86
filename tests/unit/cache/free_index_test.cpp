#include "cache/free_index.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cache/address_map.h"
#include "cache/block.h"

namespace neap::cache {
namespace {

using Entry = std::pair<std::uint64_t, std::uint64_t>;

std::vector<Entry> entries(const FreeIndex& index) {
  std::vector<Entry> all;
  for (auto at = index.begin(); at != index.end(); at = index.next(at))
    all.emplace_back(index[at].size, index[at].address);
  return all;
}

TEST(FreeIndex, FollowsAnOrderedSet) {
  std::mt19937_64 random(7);
  FreeIndex index;
  std::set<Entry> model;
  for (int step = 0; step < 60000; ++step) {
    // Grows to thousands of entries, then shrinks to none, several times over.
    const bool grow = (step / 6000) % 2 == 0 ? random() % 4 != 0 : random() % 4 == 0;
    const Entry entry{random() % 64, random() % 512};
    if (grow) {
      if (model.insert(entry).second) index.insert({entry.first, entry.second, nullptr});
    } else if (!model.empty()) {
      auto victim = model.lower_bound(entry);
      if (victim == model.end()) victim = model.begin();
      EXPECT_TRUE(index.erase(victim->first, victim->second));
      model.erase(victim);
    }
    ASSERT_EQ(index.size(), model.size());
    const Entry wanted{random() % 64, random() % 512};
    const auto expected = model.lower_bound(wanted);
    const auto found = index.lower_bound(wanted.first, wanted.second);
    ASSERT_EQ(found == index.end(), expected == model.end());
    if (found != index.end()) {
      ASSERT_EQ(index[found].size, expected->first);
      ASSERT_EQ(index[found].address, expected->second);
      if (expected != model.begin()) {
        ASSERT_EQ(index[index.previous(found)].address, std::prev(expected)->second);
      }
    }
    if (step % 997 == 0) {
      ASSERT_EQ(entries(index), std::vector<Entry>(model.begin(), model.end()));
    }
  }
  EXPECT_FALSE(index.erase(1000, 1000));
}

TEST(AddressMap, FollowsAnOrderedMap) {
  std::mt19937_64 random(11);
  AddressMap<Block*> map;
  std::vector<Block> blocks(4096);
  std::set<std::uint64_t> model;
  for (int step = 0; step < 100000; ++step) {
    const std::uint64_t slot = random() % blocks.size();
    const std::uint64_t address = (slot + 1) * 512;
    if (model.count(address) == 0 && random() % 2 == 0) {
      map.insert(address, &blocks[slot]);
      model.insert(address);
    } else if (random() % 2 == 0) {
      EXPECT_EQ(map.take(address), model.erase(address) == 1 ? &blocks[slot] : nullptr);
    }
    ASSERT_EQ(map.size(), model.size());
    ASSERT_EQ(map.find(address), model.count(address) == 1 ? &blocks[slot] : nullptr);
  }
}

}  // namespace
}  // namespace neap::cache

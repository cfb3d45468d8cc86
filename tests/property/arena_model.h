// What every region of an arena must hold. Every page of a region carries one word; the model knows
// which words are defined and what they are.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "arena/transfer_lane.h"
#include "conformance/device_words.h"
#include "conformance/devices.h"

namespace neap::arena {

inline constexpr std::uint64_t kCapacityUnits = 400;
inline constexpr std::uint64_t kMostUnits = 12;  // of a region
inline constexpr std::uint64_t kStoredWords = 32;
inline const std::vector<std::string> kTags = {"plain", "host", "elastic", "mixed", "alias"};

struct Word {
  std::uint64_t value = 0;
  bool defined = false;
};
struct ModelRegion {
  std::string tag;
  device::Address address = 0;
  Policy policy = Policy::kDiscard;
  bool resident = true;
  std::uint64_t generation = 1;
  bool dirty = true;  ///< written since the last pause that kept it
  bool kept = false;
  /// One a page; null where the page was given up. Aliases share them.
  std::vector<std::shared_ptr<Word>> pages;
};

class Model {
 public:
  Model(device::LedgerDevice& device, std::uint64_t seed);

  void step();
  void look_at_all();
  void finish();

 private:
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  std::uint64_t any() {
    if (regions_.empty()) return 0;
    auto it = regions_.begin();
    std::advance(it, static_cast<long>(pick(regions_.size())));
    return it->first;
  }
  /// Addresses of the test words in the mapped pages of a region.
  [[nodiscard]] std::vector<device::Address> places(const ModelRegion& region) const;
  std::vector<std::string> some_tags();
  static bool in(const std::vector<std::string>& names, const std::string& tag);
  /// An out-of-memory must be true: even with everything kept given back it would not fit.
  void expect_short(const Status& status);

  void create();
  void destroy();
  static void model_pause(ModelRegion& region, std::optional<Policy> policy);
  static void model_resume(ModelRegion& region);
  PauseOptions pause_options(const std::vector<std::string>& names);
  void pause() { pause(some_tags()); }
  void pause(const std::vector<std::string>& names);
  /// Whether a pause of its tag passed the region by: it is kept, or shares a page with one that is,
  /// which only the arena knows.
  [[nodiscard]] bool stayed(std::uint64_t id) const;
  void resume() { resume(some_tags()); }
  void resume(const std::vector<std::string>& names);
  /// While a ticket for `names` is open.
  void move_others(const std::vector<std::string>& names);
  void resume_behind();
  void back_up();
  void renew_storage();
  /// A few words of a region out of the storage or into it. Nothing moves the region meanwhile.
  void transfer();
  void exchange();
  /// Writes new words and looks which of the regions that shared its pages still do.
  void find_aliases(ModelRegion& region);
  void put(const ModelRegion& region);
  void shrink();
  void grow();
  void alias();
  void keep();
  void prepare();
  void write();
  /// The region was written, and so were those that share its pages.
  void mark_dirty(const ModelRegion& region);
  void look(std::uint64_t id);

  std::mt19937_64 random_;
  device::LedgerDevice& device_;
  const Bytes unit_;
  std::unique_ptr<device::DeviceWords> words_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<TransferLane> lane_;
  std::unique_ptr<HostStorage> storage_;
  std::vector<Word> stored_;
  std::map<std::uint64_t, ModelRegion> regions_;
};

}  // namespace neap::arena

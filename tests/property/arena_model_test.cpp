// Random operations on an arena against a model of what each region must hold. Every page of a
// region carries one word; the model knows which words are defined and what they are.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>

#include "arena/arena.h"
#include "arena/transfer_lane.h"
#include "conformance/device_words.h"
#include "conformance/devices.h"

namespace neap::arena {
namespace {

using device::Address;

constexpr std::uint64_t kCapacityUnits = 400;
constexpr std::uint64_t kMostUnits = 12;  // of a region
constexpr std::uint64_t kStoredWords = 32;
const std::vector<std::string> kTags = {"plain", "host", "elastic", "mixed", "alias"};

struct Word {
  std::uint64_t value = 0;
  bool defined = false;
};
struct ModelRegion {
  std::string tag;
  Address address = 0;
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
  Model(device::LedgerDevice& device, std::uint64_t seed)
      : random_(seed),
        device_(device),
        unit_(device.info().granularity),
        words_(std::make_unique<device::DeviceWords>(device, kMostUnits)) {
    Options options;
    options.keep_host_buffers = seed % 2 == 0;
    options.page_store_budget = seed % 3 == 0 ? unit_ * 32 : Bytes(~0ull);
    options.touch_threads = 1;
    arena_ = std::move(Arena::make(device_, options)).value();
    arena_->set_page_limit("elastic", unit_);
    lane_ = std::move(TransferLane::make(*arena_)).value();
  }

  void step() {
    switch (pick(21)) {
      case 0:
      case 1:
      case 2:
        return create();
      case 3:
        return destroy();
      case 4:
      case 5:
        return pause();
      case 6:
      case 7:
        return resume();
      case 8:
        return exchange();
      case 9:
        return shrink();
      case 10:
        return grow();
      case 11:
        return alias();
      case 12:
        if (pick(8) == 0) {
          EXPECT_TRUE(arena_->release_store(unit_ * pick(64)).ok());
        }
        return;
      case 13:
        return prepare();
      case 14:
        return keep();
      case 15:
        return resume_behind();
      case 16:
        return back_up();
      case 17:
        return renew_storage();
      case 18:
        return transfer();
      default:
        write();
        return look(any());
    }
  }

  void look_at_all() {
    for (auto& [id, region] : regions_) look(id);
    const Stats stats = arena_->stats();
    const auto usage = device_.usage();
    ASSERT_EQ(stats.physical, usage.page_bytes);
    ASSERT_LE(stats.page_store, stats.physical);
    ASSERT_EQ(arena_->regions().size(), regions_.size());
  }

  void finish() {
    look_at_all();
    lane_.reset();
    storage_.reset();
    arena_.reset();
    words_.reset();
    EXPECT_EQ(device_.usage(), device::Ledger::Usage{});
    EXPECT_EQ(device_.registered_hosts(), 0u);
  }

 private:
  std::uint64_t pick(std::uint64_t n) { return random_() % n; }
  std::uint64_t any() {
    if (regions_.empty()) return 0;
    auto it = regions_.begin();
    std::advance(it, static_cast<long>(pick(regions_.size())));
    return it->first;
  }
  /// Where the pages that are there have their words.
  std::vector<Address> places(const ModelRegion& region) const {
    std::vector<Address> all;
    for (std::size_t i = 0; i < region.pages.size(); ++i)
      if (region.pages[i] != nullptr) all.push_back(region.address + unit_.count() * i);
    return all;
  }
  std::vector<std::string> some_tags() {
    std::vector<std::string> names;
    for (const auto& tag : kTags)
      if (pick(3) == 0) names.push_back(tag);
    if (names.empty()) names.push_back(kTags[pick(kTags.size())]);
    return names;
  }
  static bool in(const std::vector<std::string>& names, const std::string& tag) {
    return std::find(names.begin(), names.end(), tag) != names.end();
  }
  /// An out-of-memory must be true: even with everything kept given back it would not fit.
  void expect_short(const Status& status) {
    ASSERT_EQ(status.code(), ErrorCode::kOutOfDeviceMemory) << status.message();
    ASSERT_NE(status.shortage(), nullptr);
    const Stats stats = arena_->stats();
    ASSERT_GT(stats.physical - stats.page_store + status.shortage()->need, unit_ * kCapacityUnits)
        << status.message();
  }

  void create() {
    if (regions_.size() > 60) return;
    const std::string& tag = kTags[pick(kTags.size() - 1)];
    const auto policy = static_cast<Policy>(tag == "plain" ? 0 : tag == "host" ? 1 : pick(4));
    const std::uint64_t pages = 1 + pick(kMostUnits);
    const Bytes asked = unit_ * pages - Bytes(pick(unit_.count()));
    const bool paused = pick(4) == 0;
    auto made =
        paused ? arena_->create_paused(tag, asked, policy) : arena_->create(tag, asked, policy);
    if (!made.ok()) return expect_short(made.status());
    ASSERT_EQ(made->size, unit_ * pages);
    ModelRegion region;
    region.tag = tag;
    region.address = made->address;
    region.policy = policy;
    region.resident = !paused;
    region.generation = paused ? 0 : 1;
    for (std::uint64_t i = 0; i < pages; ++i) region.pages.push_back(std::make_shared<Word>());
    regions_.emplace(static_cast<std::uint64_t>(made->id), std::move(region));
  }
  void destroy() {
    if (regions_.empty()) return;
    const std::uint64_t id = any();
    const Status status = arena_->destroy(RegionId{id});
    ASSERT_TRUE(status.ok()) << status.message();
    regions_.erase(id);
  }
  static void model_pause(ModelRegion& region, std::optional<Policy> policy) {
    if (!region.resident) return;
    region.resident = false;
    region.policy = policy.value_or(region.policy);
    region.dirty = false;
    for (auto& page : region.pages) {
      if (page == nullptr) continue;
      auto own = std::make_shared<Word>(*page);
      if (region.policy == Policy::kDiscard) own->defined = false;
      if (region.policy == Policy::kZero) *own = {0, true};
      page = std::move(own);
    }
  }
  static void model_resume(ModelRegion& region) {
    if (region.resident) return;
    region.resident = true;
    ++region.generation;
    if (region.policy != Policy::kZero) return;
    for (auto& page : region.pages)
      if (page != nullptr) *page = {0, true};
  }
  PauseOptions pause_options(const std::vector<std::string>& names) {
    PauseOptions options;
    if (pick(5) == 0) options.policy = static_cast<Policy>(pick(4));
    options.release_pages = pick(6) == 0;
    bool clean = true;
    for (auto& [id, region] : regions_)
      if (in(names, region.tag) && region.resident && region.dirty) clean = false;
    options.unchanged = clean;
    return options;
  }
  void pause() { pause(some_tags()); }
  void pause(const std::vector<std::string>& names) {
    const auto options = pause_options(names);
    const auto done = arena_->pause(names, options);
    ASSERT_TRUE(done.ok()) << done.status().message();
    for (auto& [id, region] : regions_)
      if (in(names, region.tag) && !stayed(id)) model_pause(region, options.policy);
  }
  /// Whether a pause of its tag passed the region by: it is kept, or shares a page with one that is,
  /// which only the arena knows.
  bool stayed(std::uint64_t id) const {
    const ModelRegion& region = regions_.at(id);
    if (region.kept) return true;
    const bool may = std::any_of(regions_.begin(), regions_.end(), [&](const auto& other) {
      return other.second.kept && other.second.tag == region.tag;
    });
    return may && region.resident && arena_->info(RegionId{id})->state == State::kResident;
  }
  void resume() { resume(some_tags()); }
  void resume(const std::vector<std::string>& names) {
    const auto done = arena_->resume(names);
    if (!done.ok()) return expect_short(done.status());
    for (auto& [id, region] : regions_)
      if (in(names, region.tag)) model_resume(region);
  }
  /// While a ticket for `names` is open.
  void move_others(const std::vector<std::string>& names) {
    std::vector<std::string> others;
    for (const auto& tag : kTags)
      if (!in(names, tag) && pick(2) == 0) others.push_back(tag);
    if (others.empty()) return;  // would be all tags
    pick(2) == 0 ? pause(others) : resume(others);
  }
  void resume_behind() {
    const auto names = some_tags();
    const auto ticket = arena_->begin_resume(names);
    if (!ticket.ok()) return expect_short(ticket.status());
    move_others(names);
    const auto done = (*ticket)->finish();
    ASSERT_TRUE(done.ok()) << done.status().message();
    for (auto& [id, region] : regions_)
      if (in(names, region.tag)) model_resume(region);
  }
  void back_up() {
    const auto names = some_tags();
    const auto ticket = arena_->begin_backup(names);
    ASSERT_TRUE(ticket.ok()) << ticket.status().message();
    move_others(names);
    look(any());
    const auto done = (*ticket)->finish();
    ASSERT_TRUE(done.ok()) << done.status().message();
    // A region that stays, because it is kept or shares a page with one that is, is not backed up.
    const auto keeps = [&](const std::string& tag) {
      return std::any_of(regions_.begin(), regions_.end(),
                         [&](const auto& r) { return r.second.kept && r.second.tag == tag; });
    };
    for (auto& [id, region] : regions_) {
      if (in(names, region.tag) && region.resident && region.policy == Policy::kHost &&
          !keeps(region.tag))
        region.dirty = false;
    }
  }
  void renew_storage() {
    if (pick(4) != 0) return;
    storage_.reset();
    auto made = HostStorage::make(*arena_, kTags[pick(kTags.size())], Bytes(8 * kStoredWords));
    ASSERT_TRUE(made.ok()) << made.status().message();
    storage_ = std::move(*made);
    stored_.assign(kStoredWords, {});
  }
  /// A few words of a region out of the storage or into it. Nothing moves the region meanwhile.
  void transfer() {
    const std::uint64_t id = any();
    if (id == 0 || storage_ == nullptr) return;
    ModelRegion& region = regions_[id];
    const bool fetch = pick(2) == 0;
    std::vector<Transfer> batch;
    std::vector<std::pair<std::size_t, std::size_t>> words;  // page, word of the storage
    for (std::size_t page = pick(3); page < region.pages.size(); page += 1 + pick(3)) {
      words.emplace_back(page, (page + pick(4) * kMostUnits) % kStoredWords);
      batch.push_back(
          {RegionId{id}, unit_ * page, storage_.get(), Bytes(8 * words.back().second), Bytes(8)});
    }
    const bool there =
        region.resident && std::all_of(words.begin(), words.end(), [&](const auto& word) {
          return region.pages[word.first] != nullptr;
        });
    const auto mark = fetch ? lane_->to_device(batch) : lane_->to_storage(batch);
    if (!there && !batch.empty()) {
      ASSERT_EQ(mark.status().code(), ErrorCode::kBusy) << mark.status().message();
      return;
    }
    ASSERT_TRUE(mark.ok()) << mark.status().message();
    if (!batch.empty()) {
      ASSERT_EQ(arena_->pause(std::vector{region.tag}).status().code(), ErrorCode::kBusy);
    }
    if (!fetch) move_others({region.tag});  // pages that aliases share are only read
    ASSERT_TRUE(lane_->wait(*mark).ok());
    for (const auto& [page, word] : words)
      fetch ? void(*region.pages[page] = stored_[word]) : void(stored_[word] = *region.pages[page]);
    if (fetch) mark_dirty(region);
  }
  void exchange() {
    const std::vector<std::string> out = {kTags[pick(kTags.size())]};
    const std::vector<std::string> come = {kTags[pick(kTags.size())]};
    const auto options = pause_options(out);
    const auto done = arena_->exchange(out, come, options);
    if (out == come) {
      ASSERT_EQ(done.status().code(), ErrorCode::kInvalidArgument);
      return;
    }
    if (!done.ok()) {
      ASSERT_EQ(done.status().code(), ErrorCode::kOutOfDeviceMemory) << done.status().message();
      // Pages had changed hands: what was to be dropped is gone, the rest is as it was, but a region
      // may have got new pages that its aliases do not have.
      for (auto& [id, region] : regions_) {
        if (!in(out, region.tag) || !region.resident) continue;
        const Policy policy = options.policy.value_or(region.policy);
        // A new generation tells that there are other pages.
        const auto info = arena_->info(RegionId{id});
        ASSERT_TRUE(info.ok());
        const bool same = info->generation == region.generation;
        if (!same) ++region.generation;
        if (same || policy == Policy::kHost || policy == Policy::kDisk || region.kept) look(id);
        find_aliases(region);
      }
      return;
    }
    for (auto& [id, region] : regions_) {
      if (in(out, region.tag) && !stayed(id)) model_pause(region, options.policy);
      if (in(come, region.tag)) model_resume(region);
    }
  }
  /// Writes new words and looks which of the regions that shared its pages still do.
  void find_aliases(ModelRegion& region) {
    const auto before = region.pages;
    for (auto& page : region.pages)
      if (page != nullptr) page = std::make_shared<Word>(Word{random_(), true});
    put(region);
    for (auto& [id, other] : regions_) {
      if (!other.resident) continue;
      for (std::size_t i = 0; i < other.pages.size(); ++i) {
        const auto was = std::find(before.begin(), before.end(), other.pages[i]);
        if (other.pages[i] == nullptr || was == before.end()) continue;
        const auto& fresh = region.pages[static_cast<std::size_t>(was - before.begin())];
        if (words_->get({other.address + unit_.count() * i}).front() == fresh->value)
          other.pages[i] = fresh;
        other.dirty = true;
      }
    }
    region.dirty = true;
  }
  void put(const ModelRegion& region) {
    std::vector<std::uint64_t> values;
    for (const auto& page : region.pages)
      if (page != nullptr) values.push_back(page->value);
    words_->put(places(region), values);
  }
  void shrink() {
    const std::uint64_t id = any();
    if (id == 0 || regions_[id].tag != "elastic") return;
    ModelRegion& region = regions_[id];
    const std::uint64_t first = pick(region.pages.size());
    const std::uint64_t count = 1 + pick(region.pages.size() - first);
    const auto done = arena_->shrink(RegionId{id}, unit_ * first, unit_ * count);
    if (region.kept) {
      ASSERT_EQ(done.status().code(), ErrorCode::kBusy);
      return;
    }
    ASSERT_TRUE(done.ok()) << done.status().message();
    for (std::uint64_t i = first; i < first + count; ++i) region.pages[i] = nullptr;
    region.dirty = true;
  }
  void grow() {
    const std::uint64_t id = any();
    if (id == 0 || regions_[id].tag != "elastic") return;
    ModelRegion& region = regions_[id];
    const std::uint64_t first = pick(region.pages.size());
    const std::uint64_t count = 1 + pick(region.pages.size() - first);
    const auto done = arena_->grow(RegionId{id}, unit_ * first, unit_ * count);
    if (!done.ok()) return expect_short(done.status());
    bool grew = false;
    for (std::uint64_t i = first; i < first + count; ++i) {
      if (region.pages[i] != nullptr) continue;
      grew = true;
      region.pages[i] = std::make_shared<Word>();
      if (region.resident && region.policy == Policy::kZero) region.pages[i]->defined = true;
    }
    if (grew && region.resident) ++region.generation;
    region.dirty = region.dirty || grew;
  }
  void alias() {
    const std::uint64_t id = any();
    if (id == 0 || regions_.size() > 60) return;
    const ModelRegion source = regions_[id];
    const bool whole = source.resident && std::all_of(source.pages.begin(), source.pages.end(),
                                                      [](const auto& p) { return p != nullptr; });
    const auto made = arena_->alias("alias", RegionId{id});
    if (!whole) {
      ASSERT_EQ(made.status().code(), ErrorCode::kBusy);
      return;
    }
    ASSERT_TRUE(made.ok()) << made.status().message();
    ModelRegion region = source;
    region.kept = false;
    region.tag = "alias";
    region.address = made->address;
    region.generation = 1;
    region.dirty = true;
    regions_.emplace(static_cast<std::uint64_t>(made->id), std::move(region));
  }
  void keep() {
    const std::uint64_t id = any();
    if (id == 0) return;
    ModelRegion& region = regions_[id];
    if (region.kept || pick(3) != 0) {
      ASSERT_TRUE(arena_->keep_resident(RegionId{id}, false).ok());
      region.kept = false;
      return;
    }
    const bool whole = region.resident && std::all_of(region.pages.begin(), region.pages.end(),
                                                      [](const auto& p) { return p != nullptr; });
    const auto kept = arena_->keep_resident(RegionId{id});
    if (!whole) {
      ASSERT_EQ(kept.status().code(), ErrorCode::kBusy);
      return;
    }
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    ASSERT_GE(*kept, unit_ * region.pages.size());
    region.kept = true;
  }
  void prepare() {
    if (pick(4) != 0) return;
    const auto names = some_tags();
    ASSERT_TRUE(arena_->prepare(names).ok());
  }
  void write() {
    const std::uint64_t id = any();
    if (id == 0 || !regions_[id].resident) return;
    ModelRegion& region = regions_[id];
    for (const auto& page : region.pages)
      if (page != nullptr) *page = {random_(), true};
    put(region);
    mark_dirty(region);
  }
  /// The region was written, and so were those that share its pages.
  void mark_dirty(const ModelRegion& region) {
    for (auto& [other, r] : regions_) {
      for (const auto& page : r.pages)
        if (page != nullptr &&
            std::find(region.pages.begin(), region.pages.end(), page) != region.pages.end())
          r.dirty = true;
    }
  }
  void look(std::uint64_t id) {
    if (id == 0) return;
    const ModelRegion& region = regions_[id];
    const auto info = arena_->info(RegionId{id});
    ASSERT_TRUE(info.ok());
    ASSERT_EQ(info->tag, region.tag);
    ASSERT_EQ(info->address, region.address);
    ASSERT_EQ(info->policy, region.policy);
    ASSERT_EQ(info->generation, region.generation);
    ASSERT_EQ(info->kept, region.kept);
    ASSERT_EQ(info->state, region.resident ? State::kResident : State::kPaused);
    const auto inside = region.address + pick(region.pages.size()) * unit_.count();
    ASSERT_EQ(static_cast<std::uint64_t>(arena_->find(inside)->id), id);
    if (!region.resident) return;
    Bytes mapped;
    const auto found = words_->get(places(region));
    for (std::size_t i = 0, there = 0; i < region.pages.size(); ++i) {
      if (region.pages[i] == nullptr) continue;
      mapped += unit_;
      const std::uint64_t word = found[there++];
      if (region.pages[i]->defined) {
        ASSERT_EQ(word, region.pages[i]->value) << region.tag << " page " << i;
      }
    }
    ASSERT_EQ(info->mapped, mapped);
  }

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

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// NEAP_PROPERTY_OPERATIONS sets how many operations run in all (1000000 for a long run),
// NEAP_PROPERTY_SEED the first seed, NEAP_PROPERTY_SECONDS when to end between two seeds; a failure
// names its seed.
class ArenaModel : public testing::TestWithParam<device::DeviceMaker> {};

TEST_P(ArenaModel, RandomOperationsAgree) {
  const device::MadeDevice made = GetParam().make(GetParam().unit * kCapacityUnits);
  if (made.real == nullptr) GTEST_SKIP() << GetParam().name << ": " << made.skip_reason;
  const bool host = made.real->info().kind == device::Kind::kHost;
  const std::uint64_t each = host ? 20'000 : 2'000;
  const std::uint64_t operations = number("NEAP_PROPERTY_OPERATIONS", host ? 60'000 : each);
  const std::uint64_t first = number("NEAP_PROPERTY_SEED", 1);
  const std::chrono::seconds most(number("NEAP_PROPERTY_SECONDS", 1'000'000));
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::steady_clock::now() - begin; };
  std::uint64_t done = 0;
  std::uint64_t seed = first;
  for (; done < operations && spent() < most; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Model model(*made.real, seed);
    for (std::uint64_t i = 0; i < each; ++i, ++done) {
      model.step();
      if (i % 500 == 0) model.look_at_all();
      if (testing::Test::HasFailure()) FAIL() << "at operation " << i << " of seed " << seed;
    }
    model.finish();
    if (testing::Test::HasFailure()) return;
  }
  std::cout << done << " operations, seeds " << first << " to " << seed - 1 << ", "
            << std::chrono::duration_cast<std::chrono::seconds>(spent()).count() << " s\n";
}

INSTANTIATE_TEST_SUITE_P(Every, ArenaModel,
                         testing::Values(device::host_maker("Host", 4_KiB), device::cuda_maker()),
                         [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace neap::arena

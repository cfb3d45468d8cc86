// Regions of the model: what is made, shared, written and looked at.
#include "arena_model.h"

#include <algorithm>

namespace neap::arena {

Model::Model(device::LedgerDevice& device, std::uint64_t seed)
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

void Model::step() {
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

void Model::look_at_all() {
  for (auto& [id, region] : regions_) look(id);
  const Stats stats = arena_->stats();
  const auto usage = device_.usage();
  ASSERT_EQ(stats.physical, usage.page_bytes);
  ASSERT_LE(stats.page_store, stats.physical);
  ASSERT_EQ(arena_->regions().size(), regions_.size());
}

void Model::finish() {
  look_at_all();
  lane_.reset();
  storage_.reset();
  arena_.reset();
  words_.reset();
  EXPECT_EQ(device_.usage(), device::Ledger::Usage{});
  EXPECT_EQ(device_.registered_hosts(), 0u);
}

std::vector<device::Address> Model::places(const ModelRegion& region) const {
  std::vector<device::Address> all;
  for (std::size_t i = 0; i < region.pages.size(); ++i)
    if (region.pages[i] != nullptr) all.push_back(region.address + unit_.count() * i);
  return all;
}

std::vector<std::string> Model::some_tags() {
  std::vector<std::string> names;
  for (const auto& tag : kTags)
    if (pick(3) == 0) names.push_back(tag);
  if (names.empty()) names.push_back(kTags[pick(kTags.size())]);
  return names;
}

bool Model::in(const std::vector<std::string>& names, const std::string& tag) {
  return std::find(names.begin(), names.end(), tag) != names.end();
}

void Model::expect_short(const Status& status) {
  ASSERT_EQ(status.code(), ErrorCode::kOutOfDeviceMemory) << status.message();
  ASSERT_NE(status.shortage(), nullptr);
  const Stats stats = arena_->stats();
  ASSERT_GT(stats.physical - stats.page_store + status.shortage()->need, unit_ * kCapacityUnits)
      << status.message();
}

void Model::create() {
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

void Model::destroy() {
  if (regions_.empty()) return;
  const std::uint64_t id = any();
  const Status status = arena_->destroy(RegionId{id});
  ASSERT_TRUE(status.ok()) << status.message();
  regions_.erase(id);
}

void Model::put(const ModelRegion& region) {
  std::vector<std::uint64_t> values;
  for (const auto& page : region.pages)
    if (page != nullptr) values.push_back(page->value);
  words_->put(places(region), values);
}

void Model::shrink() {
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

void Model::grow() {
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

void Model::alias() {
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

void Model::keep() {
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

void Model::prepare() {
  if (pick(4) != 0) return;
  const auto names = some_tags();
  ASSERT_TRUE(arena_->prepare(names).ok());
}

void Model::write() {
  const std::uint64_t id = any();
  if (id == 0 || !regions_[id].resident) return;
  ModelRegion& region = regions_[id];
  for (const auto& page : region.pages)
    if (page != nullptr) *page = {random_(), true};
  put(region);
  mark_dirty(region);
}

void Model::mark_dirty(const ModelRegion& region) {
  for (auto& [other, r] : regions_) {
    for (const auto& page : r.pages)
      if (page != nullptr &&
          std::find(region.pages.begin(), region.pages.end(), page) != region.pages.end())
        r.dirty = true;
  }
}

void Model::look(std::uint64_t id) {
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

}  // namespace neap::arena

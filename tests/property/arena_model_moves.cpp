// Moves of the model: pauses, resumes, exchanges, and transfers to a storage.
#include "arena_model.h"

#include <algorithm>

namespace neap::arena {

void Model::model_pause(ModelRegion& region, std::optional<Policy> policy) {
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

void Model::model_resume(ModelRegion& region) {
  if (region.resident) return;
  region.resident = true;
  ++region.generation;
  if (region.policy != Policy::kZero) return;
  for (auto& page : region.pages)
    if (page != nullptr) *page = {0, true};
}

PauseOptions Model::pause_options(const std::vector<std::string>& names) {
  PauseOptions options;
  if (pick(5) == 0) options.policy = static_cast<Policy>(pick(4));
  options.release_pages = pick(6) == 0;
  bool clean = true;
  for (auto& [id, region] : regions_)
    if (in(names, region.tag) && region.resident && region.dirty) clean = false;
  options.unchanged = clean;
  return options;
}

void Model::pause(const std::vector<std::string>& names) {
  const auto options = pause_options(names);
  const auto done = arena_->pause(names, options);
  ASSERT_TRUE(done.ok()) << done.status().message();
  for (auto& [id, region] : regions_)
    if (in(names, region.tag) && !stayed(id)) model_pause(region, options.policy);
}

bool Model::stayed(std::uint64_t id) const {
  const ModelRegion& region = regions_.at(id);
  if (region.kept) return true;
  const bool may = std::any_of(regions_.begin(), regions_.end(), [&](const auto& other) {
    return other.second.kept && other.second.tag == region.tag;
  });
  return may && region.resident && arena_->info(RegionId{id})->state == State::kResident;
}

void Model::resume(const std::vector<std::string>& names) {
  const auto done = arena_->resume(names);
  if (!done.ok()) return expect_short(done.status());
  for (auto& [id, region] : regions_)
    if (in(names, region.tag)) model_resume(region);
}

void Model::move_others(const std::vector<std::string>& names) {
  std::vector<std::string> others;
  for (const auto& tag : kTags)
    if (!in(names, tag) && pick(2) == 0) others.push_back(tag);
  if (others.empty()) return;  // would be all tags
  pick(2) == 0 ? pause(others) : resume(others);
}

void Model::resume_behind() {
  const auto names = some_tags();
  const auto ticket = arena_->begin_resume(names);
  if (!ticket.ok()) return expect_short(ticket.status());
  move_others(names);
  const auto done = (*ticket)->finish();
  ASSERT_TRUE(done.ok()) << done.status().message();
  for (auto& [id, region] : regions_)
    if (in(names, region.tag)) model_resume(region);
}

void Model::back_up() {
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

void Model::renew_storage() {
  if (pick(4) != 0) return;
  storage_.reset();
  auto made = HostStorage::make(*arena_, kTags[pick(kTags.size())], Bytes(8 * kStoredWords));
  ASSERT_TRUE(made.ok()) << made.status().message();
  storage_ = std::move(*made);
  stored_.assign(kStoredWords, {});
}

void Model::transfer() {
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

void Model::exchange() {
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

void Model::find_aliases(ModelRegion& region) {
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

}  // namespace neap::arena

#include "arena/page_store.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/log.h"

namespace neap::arena {

using trace::EventKind;

bool PageStore::take_kept(Bytes size, Page& page) {
  const std::lock_guard lock(mutex_);
  const auto it = kept_.find(size.count());
  if (it == kept_.end()) return false;
  page = {it->second.back(), size};
  it->second.pop_back();
  if (it->second.empty()) kept_.erase(it);
  counts_.kept -= size;
  ++counts_.hits;
  return true;
}

Result<Page> PageStore::take(Bytes size) {
  Page page;
  if (take_kept(size, page)) return page;
  return create(size);
}

Result<Page> PageStore::create(Bytes size) {
  Bytes over;
  {
    const std::lock_guard lock(mutex_);
    over = std::min(saturating_sub(counts_.physical + size, target_), counts_.kept);
  }
  if (!over.is_zero()) NEAP_TRY(release_some(over).status());
  for (;;) {
    auto made = device_.create(size);
    if (made.ok()) {
      const std::lock_guard lock(mutex_);
      counts_.physical += size;
      counts_.peak_physical = std::max(counts_.peak_physical, counts_.physical);
      ++counts_.creates;
      events_.record(EventKind::kCreate, static_cast<std::uint64_t>(*made), size);
      return Page{*made, size};
    }
    if (made.status().code() != ErrorCode::kOutOfDeviceMemory) return made.status();
    NEAP_TRY_ASSIGN(const Bytes gone, release_some(size));
    if (gone.is_zero()) return made.status();
  }
}

Result<std::vector<Page>> PageStore::take_all(const std::vector<Bytes>& sizes) {
  std::vector<Page> pages(sizes.size());
  std::vector<std::size_t> missing;
  // Kept pages first, because creating a page may release kept ones.
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (!take_kept(sizes[i], pages[i])) missing.push_back(i);
  for (const std::size_t i : missing) {
    auto made = create(sizes[i]);
    if (!made.ok()) {
      std::vector<Page> fresh;
      for (const std::size_t m : missing) {
        if (pages[m].id == device::PageId::kNone) break;
        fresh.push_back(std::exchange(pages[m], Page{}));
      }
      std::erase_if(pages, [](const Page& page) { return page.id == device::PageId::kNone; });
      give(fresh, true);
      give(pages);
      return made.status();
    }
    pages[i] = *made;
  }
  return pages;
}

Status PageStore::release(const Page& page) {
  NEAP_TRY(device_.release(page.id));
  const std::lock_guard lock(mutex_);
  counts_.physical -= page.size;
  ++counts_.releases;
  events_.record(EventKind::kRelease, static_cast<std::uint64_t>(page.id), page.size);
  return {};
}

void PageStore::give(const std::vector<Page>& pages, bool to_driver) {
  std::vector<Page> leaving;   // kept if the driver refuses
  std::vector<Page> exported;  // never reused
  Bytes over;
  {
    const std::lock_guard lock(mutex_);
    exported.swap(refused_);
    for (const Page& page : pages) {
      if (const auto it = special_.find(static_cast<std::uint64_t>(page.id));
          it != special_.end()) {
        if (it->second.extra_uses > 0) {
          --it->second.extra_uses;
          if (it->second.extra_uses == 0 && !it->second.exported) special_.erase(it);
          continue;
        }
        special_.erase(it);
        exported.push_back(page);
      } else if (to_driver) {
        leaving.push_back(page);
      } else {
        kept_[page.size.count()].push_back(page.id);
        counts_.kept += page.size;
      }
    }
    over = saturating_sub(counts_.kept, budget_);
  }
  for (const Page& page : exported) {
    const Status released = release(page);
    if (released.ok()) continue;
    log::warn(format("an exported page of {} stays held: {}", page.size, released.message()));
    const std::lock_guard lock(mutex_);
    refused_.push_back(page);
  }
  for (const Page& page : leaving) {
    const Status released = release(page);
    if (released.ok()) continue;
    log::warn(format("a page of {} was not released: {}", page.size, released.message()));
    const std::lock_guard lock(mutex_);
    kept_[page.size.count()].push_back(page.id);
    counts_.kept += page.size;
  }
  if (!over.is_zero()) {
    const auto trimmed = release_some(over);
    if (!trimmed.ok())
      log::warn(format("page store over its budget: {}", trimmed.status().message()));
  }
}

Result<Bytes> PageStore::release_some(Bytes bytes) {
  Bytes gone;
  while (gone < bytes) {
    Page page;
    {
      const std::lock_guard lock(mutex_);
      if (kept_.empty()) break;
      // Take the largest page that does not exceed the need, else the smallest page.
      auto it = kept_.upper_bound((bytes - gone).count());
      if (it != kept_.begin()) --it;
      page = {it->second.back(), Bytes(it->first)};
      it->second.pop_back();
      if (it->second.empty()) kept_.erase(it);
      counts_.kept -= page.size;
    }
    if (Status released = release(page); !released.ok()) {
      const std::lock_guard lock(mutex_);
      kept_[page.size.count()].push_back(page.id);
      counts_.kept += page.size;
      return released;
    }
    gone += page.size;
  }
  return gone;
}

Result<Bytes> PageStore::release_down_to(Bytes keep) {
  give({});  // give() retries pages that the driver refused to release
  Bytes over;
  {
    const std::lock_guard lock(mutex_);
    over = saturating_sub(counts_.kept, keep);
  }
  if (over.is_zero()) return over;
  NEAP_TRY_ASSIGN(const Bytes gone, release_some(over));
  events_.record(EventKind::kStore, 0, counts().kept);
  return gone;
}

void PageStore::share(device::PageId page) {
  const std::lock_guard lock(mutex_);
  ++special_[static_cast<std::uint64_t>(page)].extra_uses;
}

void PageStore::mark_exported(device::PageId page) {
  const std::lock_guard lock(mutex_);
  special_[static_cast<std::uint64_t>(page)].exported = true;
}

bool PageStore::is_private(device::PageId page) const {
  const std::lock_guard lock(mutex_);
  return !special_.contains(static_cast<std::uint64_t>(page));
}

void PageStore::set_budget(Bytes budget) {
  {
    const std::lock_guard lock(mutex_);
    budget_ = budget;
  }
  give({});
}

Inventory PageStore::kept_by_size() const {
  const std::lock_guard lock(mutex_);
  Inventory kept;
  for (const auto& [size, pages] : kept_) kept.emplace(size, pages.size());
  return kept;
}

PageStore::Counts PageStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace neap::arena

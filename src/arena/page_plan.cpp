#include "arena/page_plan.h"

#include <algorithm>

namespace neap::arena {

PageCaps caps_for(const PageSizes& sizes, PageUse use, Bytes limit) {
  PageCaps caps{sizes.copying, sizes.copying};
  if (use == PageUse::kFirst) caps = {sizes.mapping, sizes.mapping};
  if (use == PageUse::kAgain) caps = {sizes.creating, sizes.mapping};
  return {std::min(caps.anew, limit), std::min(caps.found, limit)};
}

std::vector<Bytes> tile(Bytes size, const PageSizes& sizes, const PageCaps& caps,
                        Inventory& there) {
  std::vector<Bytes> classes{sizes.mapping};
  for (Bytes page = sizes.creating; page >= sizes.smallest; page = page / 2)
    classes.push_back(page);
  // A cap below the smallest class is a class of its own (elastic regions).
  if (caps.anew < sizes.smallest && !caps.anew.is_zero()) classes.push_back(caps.anew);

  std::vector<Bytes> pages;
  const auto take = [&](Bytes page, std::uint64_t count) {
    pages.insert(pages.end(), count, page);
    size -= page * count;
  };
  // Prefer existing pages down to one chunk: below that, mapping them costs more than creating a
  // large page.
  for (const Bytes page : classes) {
    if (page > caps.found || page < std::min(caps.anew, sizes.copying)) continue;
    const auto found = there.find(page.count());
    if (found == there.end()) continue;
    const std::uint64_t count = std::min(found->second, size / page);
    found->second -= count;
    take(page, count);
  }
  for (const Bytes page : classes) {
    if (page > caps.anew) continue;
    const std::uint64_t count = size / page;
    if (const auto found = there.find(page.count()); found != there.end())
      found->second -= std::min(found->second, count);
    take(page, count);
  }
  if (!size.is_zero()) {
    if (const auto found = there.find(size.count()); found != there.end() && found->second > 0)
      --found->second;
    pages.push_back(size);
  }
  return pages;
}

}  // namespace neap::arena

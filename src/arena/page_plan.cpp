#include "arena/page_plan.h"

namespace neap::arena {

std::vector<Bytes> tile(Bytes size, const PageSizes& sizes, Bytes largest) {
  std::vector<Bytes> pages;
  const auto take_all = [&](Bytes page) {
    if (page > largest) return;
    for (; size >= page; size -= page) pages.push_back(page);
  };
  take_all(sizes.mapping);
  for (Bytes page = sizes.creating; page >= sizes.smallest; page = page / 2) take_all(page);
  // A cap under the smallest class is a page of its own (elastic regions).
  if (largest < sizes.smallest && !largest.is_zero()) take_all(largest);
  if (!size.is_zero()) pages.push_back(size);
  return pages;
}

}  // namespace neap::arena

// Which pages a range is made of.
//
// What a page costs is per handle, not per byte (bench/arena/handle_sizes.py): mapping gets cheaper
// up to 4 GiB and more, creating does not beyond 1 GiB. So: large pages for a range that keeps them,
// 1 GiB where they are made anew, and one stage of a copy for contents that are copied and for small
// regions that share pages. Powers of two, and one odd page for what is left, so that tags of
// different sizes find each other's pages; what is there already comes before what would be new.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/bytes.h"

namespace neap::arena {

struct PageSizes {
  Bytes mapping = 4_GiB;    ///< cheapest to map: for ranges that may keep their pages
  Bytes creating = 1_GiB;   ///< cheap to create, too
  Bytes copying = 512_MiB;  ///< a stage of a copy; also what small regions share at most
  Bytes smallest = 32_MiB;  ///< below, the rest of a range is one page
};

/// How large the pages of a range may be.
struct PageCaps {
  Bytes anew;
  Bytes found;  ///< at least `anew`: pages that are there to be had
};
enum class PageUse {
  kFirst,   ///< a large region's first pages: whether it will keep them is not known
  kAgain,   ///< a large region's later ones
  kCopied,  ///< contents come and go with them
  kShared,  ///< several regions lie under them
};
[[nodiscard]] PageCaps caps_for(const PageSizes& sizes, PageUse use, Bytes limit);

/// Pages that may be had without the driver, by size.
using Inventory = std::map<std::uint64_t, std::uint64_t>;

/// Sizes, in address order, that add up to `size` (a multiple of the granularity); what is taken
/// from `there` is taken out of it.
[[nodiscard]] std::vector<Bytes> tile(Bytes size, const PageSizes& sizes, const PageCaps& caps,
                                      Inventory& there);

}  // namespace neap::arena

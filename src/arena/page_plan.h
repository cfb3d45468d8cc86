// Chooses the page sizes of a range.
//
// A page costs per handle, not per byte (bench/arena/handle_sizes.py). Mapping gets cheaper up to
// pages of 4 GiB and more; creating gets cheaper only up to 1 GiB.
//
// - A range that keeps its pages gets large ones.
// - A range whose pages are created again gets 1 GiB.
// - Contents that are copied, and small regions that share pages, get one transfer chunk.
//
// Sizes are powers of two, with one odd page for the rest, so that tags of different sizes can
// reuse each other's pages. Existing pages are preferred to new ones.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/bytes.h"

namespace neap::arena {

struct PageSizes {
  Bytes mapping = 4_GiB;    ///< cheapest to map: for ranges that may keep their pages
  Bytes creating = 1_GiB;   ///< also cheap to create
  Bytes copying = 512_MiB;  ///< one transfer chunk; also the most that small regions share
  Bytes smallest = 32_MiB;  ///< a smaller remainder of a range is one page
};

/// How large the pages of a range may be.
struct PageCaps {
  Bytes anew;
  Bytes found;  ///< maximum for existing pages; at least `anew`
};
enum class PageUse {
  kFirst,   ///< a large region's first pages; whether it keeps them is not known yet
  kAgain,   ///< a large region's later pages
  kCopied,  ///< contents are copied with them
  kShared,  ///< several regions share them
};
[[nodiscard]] PageCaps caps_for(const PageSizes& sizes, PageUse use, Bytes limit);

/// Number of existing pages by size.
using Inventory = std::map<std::uint64_t, std::uint64_t>;

/// Page sizes in address order that add up to `size` (a multiple of the granularity). Existing
/// pages that are used are removed from `there`.
[[nodiscard]] std::vector<Bytes> tile(Bytes size, const PageSizes& sizes, const PageCaps& caps,
                                      Inventory& there);

}  // namespace neap::arena

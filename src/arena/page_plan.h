// Which pages a range is made of.
//
// What a page costs is per handle, not per byte, and handles of 512 MiB are the cheapest to create
// while larger ones are cheaper to map (docs/arena.md has the measurements). So: large pages where
// a range keeps them, 512 MiB where they are made anew, powers of two below, and one odd page for
// what is left, so that tags of different sizes find each other's pages in the store.
#pragma once

#include <vector>

#include "base/bytes.h"

namespace neap::arena {

struct PageSizes {
  Bytes mapping = 4_GiB;     ///< cheap to map, dear to create: for ranges that keep their pages
  Bytes creating = 512_MiB;  ///< cheapest to create
  Bytes smallest = 32_MiB;   ///< below, the rest of a range is one page
};

/// Sizes, in address order, that add up to `size` (a multiple of the granularity). `largest` caps
/// them.
[[nodiscard]] std::vector<Bytes> tile(Bytes size, const PageSizes& sizes, Bytes largest);

}  // namespace neap::arena

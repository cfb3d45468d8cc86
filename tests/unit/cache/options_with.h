#pragma once

#include <string_view>

#include "cache/caching_allocator.h"

namespace neap::cache {

/// Options of one thread with the settings of an allocator configuration such as
/// "expandable_segments:True".
inline CacheOptions options_with(std::string_view conf, PolicyVersion version = {}) {
  CacheOptions options;
  options.settings = *Settings::parse(conf);
  options.version = version;
  options.locking = LockPolicy::kNone;
  return options;
}

}  // namespace neap::cache

// Telling listeners, with no lock held.
#include <algorithm>

#include "arena/table.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

std::vector<Arena::Impl::Listener> listeners_of(const Arena::Impl& arena) {
  const std::shared_lock lock(arena.table);
  return arena.listeners;
}

/// Runs `first` for every region and listener in turn. When one fails, `back` runs for those that
/// had succeeded, latest first, so that each listener is left as it was.
Status call_all(const Arena::Impl& arena, const std::vector<RegionInfo>& regions,
                std::function<Status(const RegionInfo&)> Callbacks::*first,
                std::function<Status(const RegionInfo&)> Callbacks::*back, std::string_view name) {
  const auto listeners = listeners_of(arena);
  if (listeners.empty()) return {};
  std::vector<std::pair<const Arena::Impl::Listener*, const RegionInfo*>> done;
  for (const RegionInfo& region : regions) {
    for (const auto& listener : listeners) {
      if (!listener.tag.empty() && listener.tag != region.tag) continue;
      const auto& call = listener.callbacks.*first;
      Status status = call ? call(region) : Status();
      if (status.ok()) {
        done.emplace_back(&listener, &region);
        continue;
      }
      for (auto it = done.rbegin(); it != done.rend(); ++it) {
        const auto& undo = it->first->callbacks.*back;
        if (!undo) continue;
        if (const Status undone = undo(*it->second); !undone.ok())
          log::warn(format("a listener of tag {} could not go back: {}", it->second->tag,
                           undone.message()));
      }
      return std::move(status).with_context(
          format("calling {} for tag {} at {:#x}", name, region.tag, region.address));
    }
  }
  return {};
}

}  // namespace

Status Arena::Impl::call_before_unmap(const std::vector<RegionInfo>& infos) {
  return call_all(*this, infos, &Callbacks::before_unmap, &Callbacks::after_map, "before_unmap");
}

Status Arena::Impl::call_after_map(const std::vector<RegionInfo>& infos) {
  return call_all(*this, infos, &Callbacks::after_map, &Callbacks::before_unmap, "after_map");
}

}  // namespace neap::arena

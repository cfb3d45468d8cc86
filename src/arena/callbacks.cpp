// Listeners are stored under the table lock and called without any lock.
#include <algorithm>

#include "arena/arena_impl.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

using Listener = Arena::Impl::Listener;
using Listeners = std::vector<std::shared_ptr<Listener>>;
using Callback = std::function<Status(const RegionInfo&)>;

/// The arenas whose listeners this thread is running, innermost first.
struct Inside {
  const Arena::Impl* arena;
  const Inside* outer;
};
thread_local const Inside* inside = nullptr;

Listeners listeners_of(const Arena::Impl& arena) {
  const std::shared_lock lock(arena.table);
  return arena.listeners;
}

/// Calls one listener for one region. Skips a listener of other tags or one that was removed.
Status call(Arena::Impl& arena, Listener& listener, Callback Callbacks::*which,
            const RegionInfo& region) {
  if (!listener.tag.empty() && listener.tag != region.tag) return {};
  const Callback& callback = listener.callbacks.*which;
  {
    const std::unique_lock lock(arena.table);
    if (listener.removed || !callback) return {};
    ++listener.calls;
  }
  const Inside here{&arena, inside};
  inside = &here;
  Status status = callback(region);
  inside = here.outer;
  const std::unique_lock lock(arena.table);
  --listener.calls;
  if (listener.removed) arena.settled.notify_all();
  return status;
}

/// Runs `first` for every region and listener in turn. If one fails, runs `back` for those that
/// succeeded, latest first, so that each listener returns to its former state.
Status call_all(Arena::Impl& arena, const std::vector<RegionInfo>& regions,
                Callback Callbacks::*first, Callback Callbacks::*back, std::string_view name) {
  const Listeners listeners = listeners_of(arena);
  if (listeners.empty()) return {};
  std::vector<std::pair<Listener*, const RegionInfo*>> done;
  for (const RegionInfo& region : regions) {
    for (const auto& listener : listeners) {
      Status status = call(arena, *listener, first, region);
      if (status.ok()) {
        done.emplace_back(listener.get(), &region);
        continue;
      }
      for (auto it = done.rbegin(); it != done.rend(); ++it) {
        if (const Status undone = call(arena, *it->first, back, *it->second); !undone.ok())
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

bool Arena::Impl::in_listener() const {
  for (const Inside* at = inside; at != nullptr; at = at->outer)
    if (at->arena == this) return true;
  return false;
}

void Arena::Impl::notify_still_mapped(const std::vector<RegionInfo>& infos) {
  const Listeners all = listeners_of(*this);
  for (const RegionInfo& region : infos) {
    for (const auto& listener : all) {
      if (const Status told = call(*this, *listener, &Callbacks::after_map, region); !told.ok())
        log::warn(format("a listener of tag {} after a move that failed: {}", region.tag,
                         told.message()));
    }
  }
}

std::uint64_t Arena::add_callbacks(std::string_view tag, Callbacks callbacks) {
  if (!impl_->check_process().ok()) return 0;
  const std::unique_lock lock(impl_->table);
  auto listener = std::make_shared<Listener>();
  listener->id = impl_->next_listener++;
  listener->tag = tag;
  listener->callbacks = std::move(callbacks);
  impl_->listeners.push_back(listener);
  return listener->id;
}

void Arena::remove_callbacks(std::uint64_t id) {
  if (!impl_->check_process().ok()) return;
  std::unique_lock lock(impl_->table);
  const auto it = std::find_if(impl_->listeners.begin(), impl_->listeners.end(),
                               [id](const auto& listener) { return listener->id == id; });
  if (it == impl_->listeners.end()) return;
  const std::shared_ptr<Listener> listener = *it;
  impl_->listeners.erase(it);
  listener->removed = true;
  if (impl_->in_listener()) return;  // this listener may be the caller
  impl_->settled.wait(lock, [&] { return listener->calls == 0; });
  listener->callbacks = {};  // a running move still holds the listener
}

Status Arena::Impl::call_before_unmap(const std::vector<RegionInfo>& infos) {
  return call_all(*this, infos, &Callbacks::before_unmap, &Callbacks::after_map, "before_unmap");
}

Status Arena::Impl::call_after_map(const std::vector<RegionInfo>& infos) {
  return call_all(*this, infos, &Callbacks::after_map, &Callbacks::before_unmap, "after_map");
}

}  // namespace neap::arena

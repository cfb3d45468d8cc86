// Which allocations of the hooks become regions: a stack of scopes for each thread.
//
// Model     The thread's innermost scope decides. A thread without one follows the newest scope that
//           was opened for all threads, then the process's default (from the environment).
// Threads   a stack belongs to its thread; all-threads scopes are shared under a lock.
// Cost      active(): a few loads unless an all-threads scope is open.
#pragma once

#include <optional>
#include <string_view>

#include "arena/arena.h"
#include "base/status.h"

namespace neap::hook {

struct Scope {
  const char* tag = "default";  ///< from intern_tag
  arena::Policy policy = arena::Policy::kDiscard;
  bool enabled = false;
  bool all_threads = false;
};

/// A copy of `tag` that lives as long as the process. Tags are few: a set, never freed.
[[nodiscard]] const char* intern_tag(std::string_view tag);

void enter_scope(const Scope& scope);
Status exit_scope();
/// What decides for this thread now; `enabled` false when nothing does.
[[nodiscard]] Scope current_scope();
/// The thread's outermost scope, changed in place (the drop-in's setters). Counts as a scope of the
/// thread's own from the first change on.
void change_base_scope(void (*change)(Scope&, const void*), const void* argument);
[[nodiscard]] Scope base_scope();

/// The process's default scope. Defined by the library that the hook is built into: from NEAP_TAG
/// for libneap_hook.so, from TMS_INIT_ENABLE and its kin for the drop-in.
[[nodiscard]] Scope initial_scope();

/// For fork: no other thread may hold the locks of this file while the process is copied.
void lock_scopes();
void unlock_scopes();

}  // namespace neap::hook

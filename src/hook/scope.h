// Decides which hooked allocations become regions, with a stack of scopes per thread.
//
// Model     The thread's innermost scope decides. A thread without a scope uses the newest scope
//           entered for all threads, then the process's default (from the environment).
//
// Threads   a stack belongs to its thread; a lock guards the scopes for all threads.
//
// Cost      current_scope(): a few loads unless an all-threads scope is open.
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

/// A copy of `tag` that is valid for the life of the process.
[[nodiscard]] const char* intern_tag(std::string_view tag);

void enter_scope(const Scope& scope);
Status exit_scope();
/// The scope that applies to this thread. `enabled` is false outside of every scope.
[[nodiscard]] Scope current_scope();
/// Changes the thread's outermost scope (for the drop-in's setters). After the first change it
/// counts as a scope of the thread.
void change_base_scope(void (*change)(Scope&, const void*), const void* argument);

/// The process's default scope. Each library defines it: libneap_hook.so from NEAP_TAG, the drop-in
/// from the variables TMS_INIT_*.
[[nodiscard]] Scope initial_scope();

/// Fork handlers call it: no other thread may hold the locks of this file during a fork.
void lock_scopes();
void unlock_scopes();

}  // namespace neap::hook

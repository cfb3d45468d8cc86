#include "hook/scope.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hook/thread_slot.h"

namespace neap::hook {
namespace {

struct Shared {
  std::mutex mutex;
  std::set<std::string, std::less<>> tags;
  std::vector<Scope> all_threads;
  std::atomic<bool> any_all_threads{false};
};
Shared& shared() {
  static auto* const kShared = new Shared();  // outlives static destruction
  return *kShared;
}

struct Stack {
  std::vector<Scope> scopes;
  Scope base = initial_scope();
  bool base_changed = false;
};

const Scope& default_scope() {
  static const Scope kDefault = initial_scope();
  return kDefault;
}

}  // namespace

const char* intern_tag(std::string_view tag) {
  // The tag is usually the same as in the last call. A plain pointer stays usable during thread
  // teardown.
  static thread_local const std::string* last = nullptr;
  if (last != nullptr && *last == tag) return last->c_str();
  Shared& state = shared();
  const std::lock_guard lock(state.mutex);
  const auto it = state.tags.find(tag);
  last = it != state.tags.end() ? &*it : &*state.tags.emplace(tag).first;
  return last->c_str();
}

void enter_scope(const Scope& scope) {
  ThreadSlot<Stack>::get().scopes.push_back(scope);
  if (!scope.all_threads) return;
  Shared& state = shared();
  const std::lock_guard lock(state.mutex);
  state.all_threads.push_back(scope);
  state.any_all_threads.store(true, std::memory_order_release);
}

Status exit_scope() {
  Stack* stack = ThreadSlot<Stack>::peek();
  if (stack == nullptr || stack->scopes.empty()) {
    return {ErrorCode::kNotFound, "This thread is not in a scope"};
  }
  const Scope scope = stack->scopes.back();
  stack->scopes.pop_back();
  if (!scope.all_threads) return {};
  Shared& state = shared();
  const std::lock_guard lock(state.mutex);
  // The newest scope of the same tag is this one or equal to it.
  const auto it = std::find_if(state.all_threads.rbegin(), state.all_threads.rend(),
                               [&](const Scope& other) { return other.tag == scope.tag; });
  if (it != state.all_threads.rend()) state.all_threads.erase(std::next(it).base());
  state.any_all_threads.store(!state.all_threads.empty(), std::memory_order_release);
  return {};
}

Scope current_scope() {
  const Stack* stack = ThreadSlot<Stack>::peek();
  if (stack != nullptr) {
    if (!stack->scopes.empty()) return stack->scopes.back();
    if (stack->base_changed) return stack->base;
  }
  Shared& state = shared();
  if (state.any_all_threads.load(std::memory_order_acquire)) {
    const std::lock_guard lock(state.mutex);
    if (!state.all_threads.empty()) return state.all_threads.back();
  }
  return default_scope();
}

void change_base_scope(void (*change)(Scope&, const void*), const void* argument) {
  Stack& stack = ThreadSlot<Stack>::get();
  change(stack.base, argument);
  stack.base_changed = true;
}

void lock_scopes() {
  shared().mutex.lock();
}
void unlock_scopes() {
  shared().mutex.unlock();
}

}  // namespace neap::hook

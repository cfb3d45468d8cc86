// NEAP_TAG=TAG puts a whole program into a scope: every hooked allocation becomes a region, without
// a change to the program. NEAP_POLICY sets the policy of its regions.
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "base/tag.h"
#include "hook/runtime.h"
#include "hook/scope.h"

namespace neap::hook {

Settings initial_settings() {
  return {};
}

Scope initial_scope() {
  Scope scope;
  const char* tag = std::getenv("NEAP_TAG");
  if (tag == nullptr || *tag == '\0') return scope;
  if (const Status valid = check_tag(tag); !valid.ok()) {
    log::warn("NEAP_TAG is not used: " + valid.message());
    return scope;
  }
  scope.tag = intern_tag(tag);
  scope.enabled = true;
  const char* policy = std::getenv("NEAP_POLICY");
  if (policy == nullptr) return scope;
  for (const auto candidate : {arena::Policy::kDiscard, arena::Policy::kHost, arena::Policy::kDisk,
                               arena::Policy::kZero}) {
    if (arena::to_string(candidate) == policy) {
      scope.policy = candidate;
      return scope;
    }
  }
  log::warn("NEAP_POLICY is none of discard, host, disk and zero; discard is used");
  return scope;
}

}  // namespace neap::hook

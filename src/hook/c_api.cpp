// neap.h: versions, errors, settings, scopes and regions.
#include "hook/c_struct.h"
#include "hook/error.h"
#include "hook/live.h"
#include "hook/runtime.h"
#include "neap/neap.h"

using neap::Bytes;
using neap::ErrorCode;
using neap::Status;
using namespace neap::hook;  // NOLINT(google-build-using-namespace)

extern "C" {

uint32_t neap_abi_version(void) {
  return NEAP_ABI_VERSION;
}
const char* neap_version(void) {
  return NEAP_VERSION;
}
const char* neap_status_name(neap_status status) {
  return neap::to_string(static_cast<ErrorCode>(status)).data();
}
const char* neap_last_error(void) {
  return last_failure().ok() ? "" : last_failure().message().c_str();
}

// These two report the last failure, so their own failures must not replace it.
neap_status neap_last_shortage(neap_shortage* shortage) {
  if (shortage == nullptr || shortage->struct_size < sizeof(size_t)) return NEAP_INVALID_ARGUMENT;
  const neap::MemoryShortage* known = last_failure().shortage();
  if (known == nullptr) return NEAP_NOT_FOUND;
  write_struct(shortage, {sizeof(neap_shortage), known->need.count(), known->free.count(),
                          known->capacity.count(), known->holders.size()});
  return NEAP_OK;
}
neap_status neap_last_holder(uint64_t index, const char** tag, uint64_t* bytes) {
  if (tag == nullptr || bytes == nullptr) return NEAP_INVALID_ARGUMENT;
  const neap::MemoryShortage* known = last_failure().shortage();
  if (known == nullptr || index >= known->holders.size()) return NEAP_NOT_FOUND;
  *tag = intern_tag(known->holders[index].tag);
  *bytes = known->holders[index].bytes.count();
  return NEAP_OK;
}

neap_status neap_configure(const neap_options* options) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(options != nullptr, "options is null"));
    neap_options known = NEAP_OPTIONS_INIT;
    NEAP_TRY(read_struct(options, known, "neap_options"));
    Settings settings;
    settings.arena.page_store_budget = Bytes(known.page_store_budget);
    settings.arena.host_budget = Bytes(known.host_budget);
    settings.arena.keep_host_buffers = known.keep_host_buffers != 0;
    settings.arena.touch_threads = known.touch_threads;
    if (known.disk_folder != nullptr) settings.arena.disk_folder = known.disk_folder;
    settings.margin = Bytes(known.margin);
    return Runtime::get().configure(settings);
  });
}

neap_status neap_device_count(int32_t* count) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(count != nullptr, "count is null"));
    NEAP_TRY_ASSIGN(*count, Runtime::get().device_count());
    return {};
  });
}

neap_status neap_scope_enter(const neap_scope* scope) {
  return guarded([&]() -> Status {
    neap_scope known = NEAP_SCOPE_INIT;
    NEAP_TRY(read_struct(scope, known, "neap_scope"));
    NEAP_TRY(require_tag(known.tag, "A scope needs a tag"));
    NEAP_TRY_ASSIGN(const auto policy, policy_from(known.policy));
    enter_scope({intern_tag(known.tag), policy, known.enabled != 0, known.all_threads != 0});
    return {};
  });
}
neap_status neap_scope_exit(void) {
  return guarded([] { return exit_scope(); });
}
neap_status neap_scope_current(neap_scope* scope) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(scope != nullptr, "scope is null"));
    NEAP_TRY(check_struct(scope, "neap_scope"));
    const Scope now = current_scope();
    write_struct(scope, {sizeof(neap_scope), intern_tag(now.tag),
                         static_cast<neap_policy>(now.policy), now.enabled, now.all_threads});
    return {};
  });
}

static Status create(int32_t device, const char* tag, uint64_t size, neap_policy policy,
                     bool paused, void** address) {
  NEAP_TRY(require(address != nullptr, "address is null"));
  NEAP_TRY(require_tag(tag, "A region needs a tag"));
  NEAP_TRY(require(size != 0, "A region's size must be greater than 0"));
  NEAP_TRY_ASSIGN(const auto known, policy_from(policy));
  Live::ensure_started();
  if (paused) {
    NEAP_TRY_ASSIGN(const OpenDevice on, Runtime::get().open(device));
    NEAP_TRY_ASSIGN(const auto region, on.arena->create_paused(tag, Bytes(size), known));
    *address = pointer(region.address);
  } else {
    const Scope scope{tag, known, true, false};
    NEAP_TRY_ASSIGN(const auto region, Runtime::get().allocate(device, scope, Bytes(size)));
    *address = pointer(region.address);
  }
  return {};
}

neap_status neap_region_create(int32_t device, const char* tag, uint64_t size, neap_policy policy,
                               void** address) {
  return guarded([&] { return create(device, tag, size, policy, false, address); });
}
neap_status neap_region_create_paused(int32_t device, const char* tag, uint64_t size,
                                      neap_policy policy, void** address) {
  return guarded([&] { return create(device, tag, size, policy, true, address); });
}

neap_status neap_region_alias(const char* tag, const void* source, void** address) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(address != nullptr, "address is null"));
    NEAP_TRY(require_tag(tag, "A region needs a tag"));
    NEAP_TRY_ASSIGN(const Place place, region_at(source));
    NEAP_TRY_ASSIGN(const auto region, place.on.arena->alias(tag, place.region.id));
    *address = pointer(region.address);
    return {};
  });
}

neap_status neap_grant_peer(int32_t device, int32_t peer) {
  return guarded([&]() -> Status {
    NEAP_TRY_ASSIGN(const OpenDevice on, Runtime::get().open(device));
    return on.device->grant_peer(peer);
  });
}

neap_status neap_region_destroy(void* address) {
  return guarded([&]() -> Status {
    NEAP_TRY_ASSIGN(const Place place, region_at(address));
    return Runtime::get().free(place, Runtime::Pages::kKeep);
  });
}

neap_status neap_region_find(const void* address, neap_region* region) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(region != nullptr, "region is null"));
    NEAP_TRY(check_struct(region, "neap_region"));
    NEAP_TRY(Runtime::get().usable());
    const auto place = Runtime::get().look_up(address);
    if (!place) return Runtime::get().find(address).status();
    write_struct(region, to_c(place->region, place->on.ordinal));
    return {};
  });
}

neap_status neap_regions(const char* tag, neap_region* regions, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(count != nullptr, "count is null"));
    NEAP_TRY(require(regions != nullptr || capacity == 0, "regions is null"));
    if (capacity > 0) NEAP_TRY(check_struct(regions, "neap_region"));
    NEAP_TRY(Runtime::get().usable());
    const size_t stride = capacity > 0 ? regions->struct_size : 0;
    size_t found = 0;
    for (const OpenDevice& on : Runtime::get().devices()) {
      for (const auto& region : on.arena->regions(tag != nullptr ? tag : "")) {
        if (found < capacity) {
          auto* at =
              reinterpret_cast<neap_region*>(reinterpret_cast<char*>(regions) + found * stride);
          at->struct_size = stride;
          write_struct(at, to_c(region, on.ordinal));
        }
        ++found;
      }
    }
    *count = found;
    return {};
  });
}

}  // extern "C"

// The C interface of torch_memory_saver on Neap, as its Python package and users of ctypes call it.
// docs/memory-saver.md lists the differences. Unlike the original it never ends the process.
//
// A thread's settings are its base scope. Regions are Neap's, so neap_* functions work on them.
#include <cstring>
#include <mutex>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "hook/c_struct.h"
#include "hook/drop_in.h"
#include "hook/error.h"
#include "hook/moves.h"
#include "hook/runtime.h"
#include "hook/scope.h"
#include "hook/thread_slot.h"
#include "neap/neap.h"

using neap::Bytes;
using neap::Status;
using namespace neap::hook;  // NOLINT(google-build-using-namespace)
namespace arena = neap::arena;

namespace {

/// The thread's settings, which define its base scope.
struct Config {
  DropInSettings settings = drop_in_settings();
};
Config& config() {
  return ThreadSlot<Config>::get();
}

void apply() {
  const Scope scope = to_scope(config().settings);
  change_base_scope(
      [](Scope& base, const void* wanted) { base = *static_cast<const Scope*>(wanted); }, &scope);
}

std::vector<std::string> one_or_all(const char* tag) {
  if (tag == nullptr || *tag == '\0') return {};
  return {tag};
}

/// Changes process-wide settings.
Status change_settings(void (*change)(Settings&, const void*), const void* argument) {
  Settings settings = Runtime::get().settings();
  change(settings, argument);
  // A kept host copy stays readable until the next resume, as in the original.
  return Runtime::get().configure(settings, arena::Arena::KeptBuffers::kReleaseAtResume);
}

}  // namespace

extern "C" {

NEAP_API void* tms_torch_malloc(ssize_t size, int device, void* stream) {
  return neap_torch_malloc(size, device, stream);
}
NEAP_API void tms_torch_free(void* address, ssize_t size, int device, void* stream) {
  neap_torch_free(address, size, device, stream);
}

NEAP_API void tms_set_interesting_region(bool value) {
  config().settings.enabled = value;
  apply();
}
NEAP_API bool tms_get_interesting_region() {
  return config().settings.enabled;
}
NEAP_API void tms_set_current_tag(const char* tag) {
  config().settings.tag = intern_tag(tag != nullptr ? tag : "default");
  apply();
}
NEAP_API const char* tms_get_current_tag() {
  return config().settings.tag;
}
NEAP_API void tms_set_enable_cpu_backup(bool value) {
  config().settings.cpu_backup = value;
  apply();
}
NEAP_API bool tms_get_enable_cpu_backup() {
  return config().settings.cpu_backup;
}
NEAP_API void tms_set_enable_disk_backup(bool value) {
  config().settings.disk_backup = value;
  apply();
}
NEAP_API bool tms_get_enable_disk_backup() {
  return config().settings.disk_backup;
}
// "pinned" and "mmap" are the original's two kinds of backup. Neap has one kind, which is mapped
// and pinned. The name is only stored and returned.
NEAP_API void tms_set_cpu_backup_backend(const char* name) {
  if (const char* known = known_backend(name != nullptr ? name : ""))
    config().settings.backend = known;
  else
    neap::log::warn(neap::format("cpu_backup_backend is \"{}\"; it can be pinned or mmap", name));
}
NEAP_API const char* tms_get_cpu_backup_backend() {
  return config().settings.backend;
}

NEAP_API int tms_set_disk_backup_dir(const char* folder) {
  return guarded([&] {
    return change_settings(
        [](Settings& settings, const void* path) {
          settings.arena.disk_folder = path != nullptr ? static_cast<const char*>(path) : "";
        },
        folder);
  });
}
NEAP_API int tms_set_retain_cpu_backup(bool value) {
  return guarded([&] {
    return change_settings(
        [](Settings& settings, const void* keep) {
          settings.arena.keep_host_buffers = *static_cast<const bool*>(keep);
        },
        &value);
  });
}
NEAP_API bool tms_get_retain_cpu_backup() {
  return Runtime::get().settings().arena.keep_host_buffers;
}
NEAP_API void set_memory_margin_bytes(uint64_t bytes) {
  Runtime::get().set_margin(Bytes(bytes));
}

/// Returns the bytes that stay resident, 0 for memory outside of regions, or a negated neap_status.
NEAP_API int64_t tms_keep_resident(const void* address) {
  int64_t bytes = 0;
  const neap_status status = guarded([&]() -> Status {
    const auto place = Runtime::get().look_up(address);
    if (!place) return {};
    NEAP_TRY_ASSIGN(const Bytes stays, place->on.arena->keep_resident(place->region.id));
    bytes = static_cast<int64_t>(stays.count());
    return {};
  });
  return status == NEAP_OK ? bytes : -int64_t{status};
}

/// Returns 0, or a neap_status; neap_last_error() then has the reason.
NEAP_API int tms_pause(const char* tag) {
  return guarded([&]() -> Status {
    // Users of the original pause to make room for other processes, so the memory is released to
    // the driver.
    arena::PauseOptions options;
    options.release_pages = true;
    NEAP_TRY_ASSIGN(const auto moved, pause_everywhere(one_or_all(tag), options));
    (void)moved;
    return {};
  });
}
NEAP_API int tms_resume(const char* tag) {
  return guarded([&]() -> Status {
    NEAP_TRY_ASSIGN(const auto moved, resume_everywhere(one_or_all(tag), {}));
    (void)moved;
    return {};
  });
}

/// Null without a host copy; neap_last_error() then has the reason.
NEAP_API uint8_t* tms_get_cpu_backup_pointer(const uint8_t* address, uint64_t size) {
  const void* host = nullptr;
  if (neap_host_copy(address, size, &host) != NEAP_OK) return nullptr;
  return static_cast<uint8_t*>(const_cast<void*>(host));
}

}  // extern "C"

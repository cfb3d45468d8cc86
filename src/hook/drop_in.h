// The drop-in's settings: what torch_memory_saver's environment variables and setters choose.
#pragma once

#include <optional>
#include <string_view>

#include "hook/scope.h"

namespace neap::hook {

struct DropInSettings {
  const char* tag = "default";
  const char* backend = "pinned";
  bool enabled = false;
  bool cpu_backup = false;
  bool disk_backup = false;
};

/// What a thread begins with: TMS_INIT_ENABLE, TMS_INIT_ENABLE_CPU_BACKUP,
/// TMS_INIT_ENABLE_DISK_BACKUP and TMS_INIT_CPU_BACKUP_BACKEND. Read once. A value that is no
/// boolean is logged and taken for false (the Python package refuses it).
[[nodiscard]] const DropInSettings& drop_in_settings();
[[nodiscard]] Scope to_scope(const DropInSettings& settings);
/// "pinned" (also for "") or "mmap"; null for any other word.
[[nodiscard]] const char* known_backend(std::string_view word);
/// 1, true, yes, 0, false, no, in the cases that the peer knows.
[[nodiscard]] std::optional<bool> parse_boolean(std::string_view text);

}  // namespace neap::hook

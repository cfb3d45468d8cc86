// Settings of the drop-in, from torch_memory_saver's environment variables and setters.
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

/// The initial settings of a thread, from TMS_INIT_ENABLE, TMS_INIT_ENABLE_CPU_BACKUP,
/// TMS_INIT_ENABLE_DISK_BACKUP and TMS_INIT_CPU_BACKUP_BACKEND. They are read once. An invalid
/// value is logged and replaced by the default (the Python package rejects it).
[[nodiscard]] const DropInSettings& drop_in_settings();
[[nodiscard]] Scope to_scope(const DropInSettings& settings);
/// Returns "pinned" (also for "") or "mmap"; null for any other word.
[[nodiscard]] const char* known_backend(std::string_view word);
/// Parses 1, true, yes, 0, false and no, in the spellings that torch_memory_saver accepts.
[[nodiscard]] std::optional<bool> parse_boolean(std::string_view text);

}  // namespace neap::hook

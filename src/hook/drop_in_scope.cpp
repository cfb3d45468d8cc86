// Reads the drop-in's environment variables.
#include <cstdlib>

#include "base/format.h"
#include "base/log.h"
#include "hook/drop_in.h"
#include "hook/runtime.h"

namespace neap::hook {
namespace {

bool boolean_variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return false;
  const auto value = parse_boolean(text);
  if (!value) log::warn(format("{}=\"{}\" is not a boolean; it counts as false", name, text));
  return value.value_or(false);
}

}  // namespace

std::optional<bool> parse_boolean(std::string_view text) {
  for (const std::string_view word : {"1", "true", "TRUE", "True", "yes", "YES", "Yes"}) {
    if (text == word) return true;
  }
  for (const std::string_view word : {"", "0", "false", "FALSE", "False", "no", "NO", "No"}) {
    if (text == word) return false;
  }
  return std::nullopt;
}

const char* known_backend(std::string_view word) {
  if (word.empty() || word == "pinned") return "pinned";
  return word == "mmap" ? "mmap" : nullptr;
}

const DropInSettings& drop_in_settings() {
  static const DropInSettings kSettings = [] {
    DropInSettings settings;
    settings.enabled = boolean_variable("TMS_INIT_ENABLE");
    settings.cpu_backup = boolean_variable("TMS_INIT_ENABLE_CPU_BACKUP");
    settings.disk_backup = boolean_variable("TMS_INIT_ENABLE_DISK_BACKUP");
    if (const char* word = std::getenv("TMS_INIT_CPU_BACKUP_BACKEND")) {
      if (const char* backend = known_backend(word))
        settings.backend = backend;
      else
        log::warn(format("TMS_INIT_CPU_BACKUP_BACKEND=\"{}\" is neither pinned nor mmap", word));
    }
    return settings;
  }();
  return kSettings;
}

Scope to_scope(const DropInSettings& settings) {
  Scope scope;
  scope.tag = settings.tag;
  scope.enabled = settings.enabled;
  if (settings.disk_backup) scope.policy = arena::Policy::kDisk;
  if (settings.cpu_backup) scope.policy = arena::Policy::kHost;
  return scope;
}

Scope initial_scope() {
  return to_scope(drop_in_settings());
}

Settings initial_settings() {
  Settings settings;
  settings.arena.keep_host_buffers = boolean_variable("TMS_RETAIN_CPU_BACKUP");
  const char* folder = std::getenv("TMS_DISK_BACKUP_DIR");
  settings.arena.disk_folder = folder != nullptr ? folder : "/tmp";
  settings.arena.named_disk_files = true;
  return settings;
}

}  // namespace neap::hook

// Writes log lines for people to stderr. Data goes to stdout and never through here.
//
// The level is read once from NEAP_LOG (debug, info, warn, error, off).
//
// Threads   any; a line is written as a whole.
// Cost      a line below the level costs one relaxed load.
#pragma once

#include <string_view>

namespace neap::log {

enum class Level : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };
void set_level(Level level);
[[nodiscard]] Level level();
[[nodiscard]] inline bool enabled(Level wanted) {
  return wanted >= level();
}

/// Sets a text such as "rank 3: " that follows "neap: " in every line. Call it before other threads
/// log.
void set_prefix(std::string_view prefix);

void write(Level level, std::string_view line);
inline void debug(std::string_view line) {
  write(Level::kDebug, line);
}
inline void info(std::string_view line) {
  write(Level::kInfo, line);
}
inline void warn(std::string_view line) {
  write(Level::kWarn, line);
}
inline void error(std::string_view line) {
  write(Level::kError, line);
}

/// Sets two functions that run before and after a line is written, so that a progress bar can clear
/// itself. Null removes them. Both run under the log's lock and must not log.
void set_line_guard(void (*before)(), void (*after)());

}  // namespace neap::log

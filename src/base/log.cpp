#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

namespace neap::log {
namespace {

Level level_from_environment() {
  const char* value = std::getenv("NEAP_LOG");
  const std::string_view text = value != nullptr ? value : "info";
  if (text == "debug") return Level::kDebug;
  if (text == "warn") return Level::kWarn;
  if (text == "error") return Level::kError;
  if (text == "off") return Level::kOff;
  return Level::kInfo;
}

std::atomic<Level>& current() {
  static std::atomic<Level> level{level_from_environment()};
  return level;
}

// Never destroyed: destructors may log after statics are gone.
std::mutex& mutex() {
  static auto* m = new std::mutex;
  return *m;
}
std::string& prefix() {
  static auto* p = new std::string;
  return *p;
}
void (*before_line)() = nullptr;
void (*after_line)() = nullptr;

}  // namespace

void set_level(Level level) {
  current().store(level, std::memory_order_relaxed);
}
Level level() {
  return current().load(std::memory_order_relaxed);
}

void set_prefix(std::string_view text) {
  const std::lock_guard lock(mutex());
  prefix() = text;
}

void set_line_guard(void (*before)(), void (*after)()) {
  const std::lock_guard lock(mutex());
  before_line = before;
  after_line = after;
}

void write(Level level, std::string_view line) {
  if (!enabled(level)) return;
  constexpr std::string_view kNames[] = {"debug: ", "", "warning: ", "error: "};
  const std::lock_guard lock(mutex());
  std::string text = "neap: ";
  text += prefix();
  text += kNames[static_cast<int>(level)];
  text += line;
  text += '\n';
  if (before_line != nullptr) before_line();
  const char* data = text.data();
  std::size_t left = text.size();
  while (left > 0) {
    const ssize_t n = ::write(STDERR_FILENO, data, left);
    if (n <= 0) break;
    data += n;
    left -= static_cast<std::size_t>(n);
  }
  if (after_line != nullptr) after_line();
}

}  // namespace neap::log

#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"

namespace neap {
namespace {

using Clock = std::chrono::steady_clock;
Progress* active = nullptr;  // the bar on the terminal; one at a time

std::string clock_text(double seconds) {
  std::array<char, 32> buffer{};
  const auto s = std::lround(seconds);
  if (s >= 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%ld:%02ld", s / 60, s % 60);
  }
  return buffer.data();
}

void put(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0)
    return;  // progress output may fail silently
}

}  // namespace

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 80;
}

Progress::Progress(std::string title, std::uint64_t total, std::string unit)
    : title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      start_(Clock::now()),
      reached_(start_),
      drawn_(start_) {
  const char* setting = std::getenv("NEAP_PROGRESS");
  quiet_ = (setting != nullptr && std::string_view(setting) == "off") ||
           !log::enabled(log::Level::kInfo);
  terminal_ = ::isatty(STDERR_FILENO) == 1;
  if (terminal_ && !quiet_ && active == nullptr) {
    active = this;
    log::set_line_guard(&Progress::clear_line, &Progress::redraw);
  }
}

Progress::~Progress() {
  finish();
}

void Progress::start(std::uint64_t done) {
  const std::lock_guard lock(mutex_);
  started_ = counting_ = true;
  first_ = done_ = done;
  start_ = reached_ = Clock::now();
  draw_if_due();
}

void Progress::update(std::uint64_t done, std::string note) {
  const std::lock_guard lock(mutex_);
  started_ = true;
  if (!counting_) {
    counting_ = true;
    first_ =
        done > 0 && total_ > 0 && done < total_ ? done - 1 : 0;  // a resumed job starts part way
  }
  done_ = done;
  reached_ = Clock::now();
  part_ = {};
  if (!note.empty()) note_ = std::move(note);
  draw_if_due();
}

void Progress::begin_part(std::string name, std::uint64_t done, std::uint64_t total,
                          std::string unit) {
  const std::lock_guard lock(mutex_);
  started_ = true;
  part_ = {std::move(name), std::move(unit), done, total};
  draw_if_due();
}

void Progress::update_part(std::uint64_t done) {
  const std::lock_guard lock(mutex_);
  part_.done = done;
  draw_if_due();
}

void Progress::set_stage(std::string stage) {
  const std::lock_guard lock(mutex_);
  stage_ = std::move(stage);
  part_ = {};
}

void Progress::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    if (started_) draw(true);
  }
  if (active == this) {
    log::set_line_guard(nullptr, nullptr);
    active = nullptr;
  }
}

void Progress::clear_line() {
  put("\r\x1b[K");
}
void Progress::redraw() {
  if (active == nullptr) return;
  const std::lock_guard lock(active->mutex_);
  if (active->started_ && !active->finished_) active->draw(false);
}

void Progress::draw_if_due() {
  const auto now = Clock::now();
  const auto wait = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000);
  if (now - drawn_ < wait) return;
  drawn_ = now;
  draw(false);
}

std::string Progress::numbers(bool last) const {
  const auto between = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  const auto now = Clock::now();
  // Use only finished units: a unit in progress must not change the rate.
  const double worked = between(start_, reached_);
  const std::uint64_t fresh = done_ - std::min(first_, done_);
  const double rate = worked > 0 ? static_cast<double>(fresh) / worked : 0;
  std::string out =
      total_ > 0 ? format("{}/{} {}", done_, total_, unit_) : format("{} {}", done_, unit_);
  if (rate >= 10) {
    out += format("  {:.0f}/s", rate);
  } else if (rate >= 0.1) {
    out += format("  {:.2f}/s", rate);
  } else if (rate > 0) {
    out += format("  {:.0f} s each", 1 / rate);
  }
  if (last || total_ == 0)
    return out + "  " + clock_text(between(start_, now)) + (last ? " in all" : "");
  // The rate is unknown until the first unit is done.
  if (rate > 0) {
    const double left = static_cast<double>(total_ - std::min(done_, total_)) / rate;
    out += "  " + clock_text(std::max(0.0, left - between(reached_, now))) + " left";
  }
  return out;
}

std::string Progress::part_text() const {
  std::string out = stage_;
  if (!out.empty() && !part_.name.empty()) out += ": ";
  out += part_.name;
  if (part_.total > 0) out += format(" {}/{} {}", part_.done, part_.total, part_.unit);
  return out;
}

std::string Progress::bar(std::size_t columns) const {
  const auto full = static_cast<std::size_t>(static_cast<double>(columns) *
                                             static_cast<double>(std::min(done_, total_)) /
                                             static_cast<double>(total_));
  std::string out;
  for (std::size_t i = 0; i < columns; ++i) out += i < full ? "█" : "░";
  return out;
}

void Progress::draw(bool last) {
  if (quiet_) return;
  std::string line = numbers(last);
  const std::string part = last ? std::string() : part_text();
  if (!part.empty()) line += "  " + part;
  if (terminal_ && total_ > 0) {
    constexpr std::size_t kNarrow = 8, kWide = 24;
    std::size_t columns = kWide;
    if (!part.empty()) {  // enough columns are left
      const std::size_t used = title_.size() + line.size() + 5;
      columns = std::clamp(terminal_columns() - std::min(used, terminal_columns()), kNarrow, kWide);
    }
    line = bar(columns) + "  " + line;
  }
  line = title_ + "  " + line;
  if (!note_.empty()) line += "  " + note_;
  if (!terminal_) {
    put("neap: " + line + "\n");
    return;
  }
  const std::size_t end = bytes_of_columns(line, terminal_columns() - 1);
  put("\r" + line.substr(0, end) + "\x1b[K" + (last ? "\n" : ""));
}

}  // namespace neap

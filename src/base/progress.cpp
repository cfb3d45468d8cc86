#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "base/text.h"

namespace neap {
namespace {

using Clock = std::chrono::steady_clock;
Progress* active = nullptr;  // the bar on the terminal; one at a time

std::string clock_text(double seconds) {
  std::array<char, 32> buffer{};
  const auto s = static_cast<long>(seconds + 0.5);
  if (s >= 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%ld:%02ld", s / 60, s % 60);
  }
  return buffer.data();
}

void put(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0)
    return;  // nothing to do: it is only progress
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

void Progress::update(std::uint64_t done, std::string note) {
  const std::lock_guard lock(mutex_);
  if (!started_) {
    started_ = true;
    first_ =
        done > 0 && total_ > 0 && done < total_ ? done - 1 : 0;  // a resumed job starts part way
  }
  done_ = done;
  if (!note.empty()) note_ = std::move(note);
  const auto now = Clock::now();
  const auto wait = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000);
  if (now - drawn_ < wait) return;
  drawn_ = now;
  draw(false);
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

void Progress::draw(bool last) {
  if (quiet_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate =
      seconds > 0 ? static_cast<double>(done_ - std::min(first_, done_)) / seconds : 0;
  std::array<char, 160> numbers{};
  if (total_ > 0) {
    const double left = rate > 0 && total_ > done_ ? static_cast<double>(total_ - done_) / rate : 0;
    std::snprintf(numbers.data(), numbers.size(), "%llu/%llu %s  %.*f/s  %s %s",
                  static_cast<unsigned long long>(done_), static_cast<unsigned long long>(total_),
                  unit_.c_str(), rate < 10 ? 2 : 0, rate, clock_text(last ? seconds : left).c_str(),
                  last ? "in all" : "left");
  } else {
    std::snprintf(numbers.data(), numbers.size(), "%llu %s  %.*f/s  %s",
                  static_cast<unsigned long long>(done_), unit_.c_str(), rate < 10 ? 2 : 0, rate,
                  clock_text(seconds).c_str());
  }
  std::string line = title_ + "  ";
  if (terminal_ && total_ > 0) {
    constexpr int kWidth = 24;
    const int full = static_cast<int>(static_cast<double>(kWidth) *
                                      static_cast<double>(std::min(done_, total_)) /
                                      static_cast<double>(total_));
    for (int i = 0; i < kWidth; ++i) line += i < full ? "█" : "░";
    line += "  ";
  }
  line += numbers.data();
  if (!note_.empty()) line += "  " + note_;
  if (!terminal_) {
    put("neap: " + line + "\n");
    return;
  }
  const std::size_t end = bytes_of_columns(line, terminal_columns() - 1);
  put("\r" + line.substr(0, end) + "\x1b[K" + (last ? "\n" : ""));
}

}  // namespace neap

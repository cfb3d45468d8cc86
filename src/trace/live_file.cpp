#include "trace/live_file.h"

namespace neap::trace {
namespace {

constexpr std::size_t kNamesBlockSize = 1U << 20;

}  // namespace

Status LiveFile::begin(std::chrono::system_clock::time_point wall) {
  encoder_.byte(static_cast<std::uint8_t>(Source::kNeap));
  encoder_.number(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(wall.time_since_epoch()).count()));
  return file_.append(wire::BlockType::kStart, encoder_.bytes());
}

Status LiveFile::add(const Metadata& metadata) {
  for (const auto& [key, value] : metadata) {
    encoder_.clear();
    encoder_.number(1);
    encoder_.text(key);
    encoder_.text(value);
    NEAP_TRY(file_.append(wire::BlockType::kMetadata, encoder_.bytes()));
  }
  return {};
}

Status LiveFile::add_new(const NameTable& names, std::mutex& lock) {
  while (true) {
    encoder_.clear();
    {
      const std::lock_guard guard(lock);
      if (names_ == names.size()) return {};
      std::size_t end = names_;
      for (std::size_t bytes = 0; end < names.size() && bytes < kNamesBlockSize; ++end)
        bytes += names.name(static_cast<std::uint32_t>(end)).size();
      encoder_.number(names_);
      encoder_.number(end - names_);
      for (; names_ < end; ++names_) encoder_.text(names.name(static_cast<std::uint32_t>(names_)));
    }
    NEAP_TRY(file_.append(wire::BlockType::kNames, encoder_.bytes()));
  }
}

Status LiveFile::add(std::span<const Event> events) {
  encoder_.clear();
  wire::encode_events(events, encoder_);
  NEAP_TRY(file_.append(wire::BlockType::kEvents, encoder_.bytes()));
  events_ += events.size();
  return {};
}

Status LiveFile::add_warning(std::string_view text) {
  encoder_.clear();
  encoder_.number(1);
  encoder_.text(text);
  return file_.append(wire::BlockType::kWarnings, encoder_.bytes());
}

Status LiveFile::add_dropped(std::uint64_t all) {
  if (all == dropped_) return {};
  encoder_.clear();
  encoder_.number(all);
  NEAP_TRY(file_.append(wire::BlockType::kDropped, encoder_.bytes()));
  dropped_ = all;
  return {};
}

Status LiveFile::end(std::uint64_t dropped) {
  encoder_.clear();
  encoder_.number(events_);
  encoder_.number(dropped);
  NEAP_TRY(file_.append(wire::BlockType::kEnd, encoder_.bytes()));
  return file_.close();
}

}  // namespace neap::trace

#include "replay/stack_text.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/text.h"

namespace neap::replay {
namespace {

/// The owner of a frame's code, most informative first.
enum class Owner : std::uint8_t { kUser, kTorchPython, kNative, kAllocator };
constexpr std::size_t kOwners = 4;

bool holds_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

/// Python's library and code written by PyTorch's compiler count as PyTorch's.
bool is_torchs_python(std::string_view file) {
  if (holds_any(file, {"-packages/torch/", "/pytorch/torch/", "/torchinductor_"})) return true;
  if (holds_any(file, {"<frozen", "<eval_with_key>"})) return true;
  return holds_any(file, {"/lib/python"}) && !holds_any(file, {"-packages/"});
}

Owner owner_of(std::string_view file, std::string_view function) {
  if (file.ends_with(".py") || file.starts_with('<'))
    return is_torchs_python(file) ? Owner::kTorchPython : Owner::kUser;
  // "empty" creates a tensor on behalf of its caller.
  if (function.empty() || function == "??" || function.starts_with("c10::") ||
      holds_any(function, {"CachingAllocator", "unwind", "CapturedTraceback", "empty"}))
    return Owner::kAllocator;
  return Owner::kNative;
}

std::string frame_text(std::string_view function, std::string_view file, std::uint32_t line) {
  std::string text = excerpt(function, 60);
  if (file.empty() || file == "??") return text;
  text += format(" ({}", file.substr(file.rfind('/') + 1));
  return text + (line == 0 ? ")" : format(":{})", line));
}

}  // namespace

std::string stack_text(const trace::Recording& recording, std::uint32_t stack) {
  constexpr std::size_t kMost = 3;
  struct Part {
    std::string text;
    std::size_t frames = 0;
  };
  std::array<Part, kOwners> parts;
  for (const std::uint32_t id : recording.stacks.stack(stack)) {
    const trace::Frame& frame = recording.stacks.frame(id);
    const std::string_view file = recording.names.name(frame.file);
    const std::string_view function = recording.names.name(frame.function);
    Part& part = parts[static_cast<std::size_t>(owner_of(file, function))];
    if (part.frames == kMost) continue;
    part.text += (part.frames++ == 0 ? "" : " < ") + frame_text(function, file, frame.line);
  }
  const auto* const found =
      std::find_if(parts.begin(), parts.end(), [](const Part& part) { return part.frames > 0; });
  return found == parts.end() ? std::string() : found->text;
}

}  // namespace neap::replay

#include "text/chat/budget.h"

#include "base/format.h"
#include "base/text.h"

namespace neap::chat {

void fail(std::string_view what) {
  constexpr std::size_t kShown = 4096;
  if (what.size() <= kShown) throw TemplateError(std::string(what));
  throw TemplateError(format("{} ({} bytes)", excerpt(what, kShown), what.size()));
}

void fail_rendering(std::string_view what) {
  fail(format("a rendering {}", what));
}

void check_length(std::size_t bytes) {
  if (Bytes(bytes) > kLimits.part) fail(format("a text {}", limit_text(kLimits, Excess::kPart)));
}

void check_levels(int levels, std::string_view what) {
  if (levels > kLimits.levels) fail(format("{} {}", what, limit_text(kLimits, Excess::kLevels)));
}

Text::Text(String made) {
  check_length(made.size());
  const Counted<String> allocator(made.get_allocator());
  owner_ = std::allocate_shared<String>(allocator, std::move(made));
  view_ = *owner_;
}

}  // namespace neap::chat

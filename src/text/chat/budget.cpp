#include "text/chat/budget.h"

#include "base/format.h"
#include "base/text.h"

namespace neap::chat {

void fail(std::string_view what) {
  constexpr std::size_t kShown = 4096;
  if (what.size() <= kShown) throw TemplateError(std::string(what));
  throw TemplateError(format("{} ({} bytes)", excerpt(what, kShown), what.size()));
}

void fail_budget(Budget::Spent spent, const Budget::Limits& limits) {
  if (spent == Budget::Spent::kBytes)
    fail(format("the template needs more than {} MiB of memory", limits.bytes >> 20));
  fail("the template does too much work; it may loop without end");
}

Text::Text(String made) {
  if (made.size() > kMaxText)
    fail(format("a text is too long: {} MiB, at most {}", made.size() >> 20, kMaxText >> 20));
  const Counted<String> allocator(made.get_allocator());
  owner_ = std::allocate_shared<String>(allocator, std::move(made));
  view_ = *owner_;
}

}  // namespace neap::chat

#include "reward/pattern.h"

#include <algorithm>

#include "base/format.h"
#include "base/regex.h"

namespace neap::reward {
namespace {

constexpr std::uint32_t kStepLimit = 5'000'000;
constexpr Bytes kMemoryLimit = 64_MiB;
constexpr int kMaxMatches = 10'000;

}  // namespace

struct Pattern::Code {
  explicit Code(Regex made) : regex(std::move(made)) {}
  Regex regex;
  std::atomic<std::uint64_t> gave_up{0};
  [[nodiscard]] bool search(std::string_view text, std::size_t from, Regex::Finds& finds) {
    const Regex::Outcome outcome = regex.search(text, from, finds);
    if (outcome == Regex::Outcome::kGaveUp) gave_up.fetch_add(1, std::memory_order_relaxed);
    return outcome == Regex::Outcome::kFound;
  }
};

Result<Pattern> Pattern::compile(std::string_view pattern) {
  auto made = Regex::compile(pattern, {.step_limit = kStepLimit, .memory_limit = kMemoryLimit});
  if (!made.ok())
    return Status(made.status().code(), format("The pattern \"{}\" does not compile: {}", pattern,
                                               made.status().message()));
  Pattern out;
  out.code_ = std::make_shared<Code>(std::move(*made));
  return out;
}

bool Pattern::found_in(std::string_view text) const {
  Regex::Finds finds;
  return code_->search(text, 0, finds);
}

std::optional<std::string_view> Pattern::last_match(std::string_view text) const {
  Regex::Finds finds;
  std::optional<std::string_view> last;
  std::size_t from = 0;
  for (int count = 0;
       count < kMaxMatches && from <= text.size() && code_->search(text, from, finds); ++count) {
    if (const auto group = finds.first_group())
      last = text.substr(group->begin, group->end - group->begin);
    const std::size_t end = finds.match().end;
    from = std::max(end, from + (end <= from ? 1 : 0));
  }
  return last;
}

std::uint64_t Pattern::gave_up() const {
  return code_->gave_up.load(std::memory_order_relaxed);
}

}  // namespace neap::reward

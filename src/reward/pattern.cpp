#include "reward/pattern.h"

#include <algorithm>

#include "base/budget.h"
#include "base/format.h"
#include "base/utf8.h"

namespace neap::reward {
namespace {

constexpr const ReadLimits& kLimits = read_limits::kRewardPattern;

std::string named(std::string_view pattern) {
  return "the pattern " + quoted_pattern(pattern);
}

// Whether it has a verb, "(*NAME)", or \G: their meaning depends on where a search starts.
bool depends_on_start(std::string_view pattern) {
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with("\\G") && !in_class) return true;
    if (rest[0] == '\\') {
      ++i;
    } else if (in_class) {
      in_class = rest[0] != ']';
    } else if (rest.starts_with("(*")) {
      return true;
    } else {
      in_class = rest[0] == '[';
      if (in_class && rest.substr(1, 1) == "]") ++i;
    }
  }
  return false;
}

}  // namespace

Result<Pattern> Pattern::compile(std::string_view pattern) {
  auto made = Regex::compile(pattern, kLimits, {.divisible = !depends_on_start(pattern)});
  if (!made.ok())
    return Status(made.status().code(), format("The pattern {} does not compile: {}",
                                               quoted_pattern(pattern), made.status().message()));
  return Pattern(std::move(*made), pattern);
}

Result<bool> Pattern::search(std::string_view text, std::size_t from, Regex::Finds& finds) const {
  const Regex::Outcome outcome = regex_.search(text, from, finds);
  if (outcome == Regex::Outcome::kFailed) return finds.failure(named(text_));
  return outcome == Regex::Outcome::kFound;
}

Result<bool> Pattern::found_in(std::string_view text) const {
  Regex::Finds finds;
  return search(text, 0, finds);
}

Result<std::optional<std::string_view>> Pattern::last_match(std::string_view text) const {
  Regex::Finds finds;
  std::optional<std::string_view> last;
  const double began = processor_seconds();
  for (std::size_t from = 0; from <= text.size();) {
    NEAP_TRY_ASSIGN(const bool found, search(text, from, finds));
    if (!found) break;
    if (const auto group = finds.first_group())
      last = text.substr(group->begin, group->end - group->begin);
    const std::size_t end = finds.match().end;
    const bool moved = end > from;
    from = end;
    if (!moved) from += from < text.size() ? utf8_front(text.substr(from)).bytes : 1;
    if (processor_seconds() - began > kLimits.seconds.of(text.size()))
      return over_limit(named(text_), kLimits, Excess::kSeconds, text.size());
  }
  return last;
}

}  // namespace neap::reward

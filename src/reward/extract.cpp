#include "reward/extract.h"

#include <algorithm>
#include <cctype>

#include "reward/number.h"

namespace neap::reward {
namespace {

std::string_view line_from(std::string_view text, std::size_t at) {
  return trimmed(text.substr(at, text.find('\n', at) - at));
}

// Text up to the brace that closes the one before `from`.
std::optional<std::string_view> braced(std::string_view text, std::size_t from) {
  int depth = 1;
  for (std::size_t i = from; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;  // \{ and \} are characters
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return trimmed(text.substr(from, i - from));
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> boxed(std::string_view text) {
  std::size_t at = std::string_view::npos;
  std::size_t behind = 0;
  for (const std::string_view command : {"\\boxed", "\\fbox"}) {
    const std::size_t last = text.rfind(command);
    if (last == std::string_view::npos || (at != std::string_view::npos && last < at)) continue;
    at = last;
    behind = last + command.size();
  }
  if (at == std::string_view::npos) return std::nullopt;
  const std::size_t start = text.find_first_not_of(' ', behind);
  if (start == std::string_view::npos) return std::nullopt;
  if (text[start] == '{') return braced(text, start + 1);
  if (start == behind) return std::nullopt;  // another command
  return trimmed(text.substr(start, text.find_first_of("$\n", start) - start));
}

std::optional<std::string_view> answer_tag(std::string_view text) {
  constexpr std::string_view kOpen = "<answer>";
  const std::size_t end = text.rfind("</answer>");
  if (end == std::string_view::npos) return std::nullopt;
  const std::size_t open = text.substr(0, end).rfind(kOpen);
  if (open == std::string_view::npos) return std::nullopt;
  return trimmed(text.substr(open + kOpen.size(), end - open - kOpen.size()));
}

bool same_letters(std::string_view text, std::size_t at, std::string_view lower) {
  if (at > text.size() || text.size() - at < lower.size()) return false;
  return std::equal(
      lower.begin(), lower.end(), text.begin() + static_cast<std::ptrdiff_t>(at),
      [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

// Behind the last "answer is" or "answer:", up to the end of the line.
std::optional<std::string_view> answer_line(std::string_view text) {
  constexpr std::string_view kWord = "answer";
  for (std::size_t at = text.size() < kWord.size() ? std::string_view::npos
                                                   : text.size() - kWord.size();
       at != std::string_view::npos; --at) {
    if (!same_letters(text, at, kWord)) continue;
    std::size_t next = at + kWord.size();
    const auto skip = [&](std::string_view characters) {
      next = std::min(text.find_first_not_of(characters, next), text.size());
    };
    skip(" *");
    const bool verb = same_letters(text, next, "is ") || same_letters(text, next, "is:");
    if (verb) next += 2;
    skip(" *");
    const bool colon = next < text.size() && text[next] == ':';
    if (colon) ++next;
    if (!verb && !colon) continue;
    std::string_view line = line_from(text, next);
    // Minerva's prompts end so.
    line = trimmed(line.substr(0, line.find("I hope it is correct")));
    while (line.ends_with('.') || line.ends_with('*'))
      line = trimmed(line.substr(0, line.size() - 1));
    while (line.starts_with('*')) line = trimmed(line.substr(1));
    if (!line.empty()) return line;
  }
  return std::nullopt;
}

std::optional<std::string_view> hashes(std::string_view text) {
  const std::size_t at = text.rfind("####");
  if (at == std::string_view::npos) return std::nullopt;
  return line_from(text, at + 4);
}

}  // namespace

std::optional<std::string_view> extract(std::string_view text, spec::Extraction how,
                                        const Pattern* pattern) {
  switch (how) {
    case spec::Extraction::kWhole:
      return trimmed(text);
    case spec::Extraction::kHashes:
      return hashes(text);
    case spec::Extraction::kBoxed:
      return boxed(text);
    case spec::Extraction::kAnswerTag:
      return answer_tag(text);
    case spec::Extraction::kAnswerLine:
      return answer_line(text);
    case spec::Extraction::kLastNumber:
      return last_number(text);
    case spec::Extraction::kPattern:
      break;
  }
  if (pattern == nullptr) return std::nullopt;
  const auto found = pattern->last_match(text);
  return found ? std::optional(trimmed(*found)) : std::nullopt;
}

}  // namespace neap::reward

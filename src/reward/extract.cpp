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
      ++i;  // \{ and \} are literal characters
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return trimmed(text.substr(from, i - from));
    }
  }
  return std::nullopt;
}

// A box, from its command to the end of its content.
struct Box {
  std::size_t begin = 0, end = 0;
  std::string_view contents;
};

// The last box that begins before `limit`. Its content is nullopt if the box is incomplete.
std::optional<std::optional<Box>> last_box(std::string_view text, std::size_t limit) {
  Box box;
  std::size_t behind = std::string_view::npos;
  for (const std::string_view command : {"\\boxed", "\\fbox"}) {
    if (limit == 0) break;
    const std::size_t last = text.rfind(command, limit - 1);
    if (last == std::string_view::npos || (behind != std::string_view::npos && last < box.begin))
      continue;
    box.begin = last;
    behind = last + command.size();
  }
  if (behind == std::string_view::npos) return std::nullopt;
  const std::optional<Box> cut;
  const std::size_t start = text.find_first_not_of(' ', behind);
  if (start == std::string_view::npos) return cut;
  if (text[start] == '{') {
    const auto contents = braced(text, start + 1);
    if (!contents) return cut;
    box.contents = *contents;
    box.end = std::min(text.find('}', static_cast<std::size_t>(contents->data() - text.data()) +
                                          contents->size()) +
                           1,
                       text.size());
    return box;
  }
  if (start == behind) return cut;  // a different command
  box.contents = trimmed(text.substr(start, text.find_first_of("$\n", start) - start));
  box.end = text.size();
  return box;
}

// Whether the text between two boxes joins them: "and", "or" or a comma, with other signs around it
// as in "$ and $x=".
bool joins_boxes(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  if (text.size() > kLongest) return false;
  bool joins = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto take = [&](std::string_view part) {
      if (!rest.starts_with(part)) return false;
      at += part.size();
      return true;
    };
    if (take(",") || take("and") || take("or")) {
      joins = true;
    } else if (rest.size() > 1 && is_letter(rest[0]) && (rest[1] == '=' || rest[1] == ' ')) {
      at += 2;  // skip x =
    } else if (!take("\\text{") && !take("\\quad") && !take("\\qquad") && !take("\\(") &&
               !take("\\)") && !take("\\[") && !take("\\]") && !take("\\ ") && !take("\\,") &&
               !take("\\;")) {
      if (std::string_view(" $\n}=_{0123456789").find(rest[0]) == std::string_view::npos)
        return false;
      ++at;
    }
  }
  return joins;
}

// Content of the last box. If several are joined, as in "\boxed{1} and \boxed{2}", the text from
// the first to the last.
std::optional<std::string_view> boxed(std::string_view text) {
  constexpr int kMost = 16;
  const auto last = last_box(text, text.size());
  if (!last || !*last) return std::nullopt;
  std::size_t begin = (*last)->begin;
  for (int i = 1; i < kMost; ++i) {
    const auto before = last_box(text, begin);
    if (!before || !*before || (*before)->end > begin ||
        !joins_boxes(text.substr((*before)->end, begin - (*before)->end)))
      break;
    begin = (*before)->begin;
  }
  if (begin == (*last)->begin) return (*last)->contents;
  return text.substr(begin, (*last)->end - begin);
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

// Whether the line only opens a formula or bold text.
bool only_marks(std::string_view line) {
  return line.find_first_not_of("$*\\[( ") == std::string_view::npos;
}

// The first line after `at` with content.
std::string_view next_line(std::string_view text, std::size_t at) {
  constexpr int kMost = 4;
  for (int i = 0; i < kMost; ++i) {
    at = text.find('\n', at);
    if (at == std::string_view::npos) return {};
    const std::string_view line = line_from(text, ++at);
    if (!only_marks(line)) return line;
  }
  return {};
}

// The text after the last "answer is" or "answer:", up to the end of the line.
std::optional<std::string_view> answer_line(std::string_view text) {
  constexpr std::string_view kWord = "answer";
  for (std::size_t at = text.size() < kWord.size() ? std::string_view::npos
                                                   : text.size() - kWord.size();
       at != std::string_view::npos; --at) {
    const bool choice =
        same_letters(text, at, "option is ") || same_letters(text, at, "choice is ");
    if (!choice && !same_letters(text, at, kWord)) continue;
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
    if (colon && only_marks(line)) line = next_line(text, next);
    // Minerva's prompts end with this sentence.
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

// Returns the text after the reasoning, which is not an answer. Empty if the reasoning has no end.
std::string_view behind_thought(std::string_view text) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  if (const std::size_t close = text.rfind(kClose); close != std::string_view::npos)
    text.remove_prefix(close + kClose.size());
  return text.substr(0, text.find(kOpen));
}

}  // namespace

std::optional<std::string_view> extract(std::string_view text, spec::Extraction how) {
  if (how == spec::Extraction::kWhole) return trimmed(text);
  text = behind_thought(text);
  switch (how) {
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
    case spec::Extraction::kWhole:
    case spec::Extraction::kPattern:
      break;
  }
  return std::nullopt;
}

}  // namespace neap::reward

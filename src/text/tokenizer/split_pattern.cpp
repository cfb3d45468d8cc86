#include "text/tokenizer/split_pattern.h"

#include <algorithm>

#include "base/format.h"
#include "base/regex.h"
#include "base/status.h"
#include "text/tokenizer/onig_pattern.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct SplitPattern::Code {
  std::optional<Regex> regex;  ///< absent if `literal` is searched instead
  std::string source, literal;
};

SplitPattern::SplitPattern(std::string_view pattern, std::string_view where) {
  auto regex = Regex::compile(pcre_of_onig(pattern, where), read_limits::kTokenizerPattern,
                              {.multiline = true, .valid_utf8 = true});
  if (!regex.ok())
    throw Error(ErrorCode::kUnsupported, format("{}: the pattern {} does not compile: {}", where,
                                                quoted_pattern(pattern), regex.status().message()));
  code_ = std::make_shared<Code>(Code{std::move(*regex), std::string(pattern), {}});
}

SplitPattern SplitPattern::literal(std::string_view text, std::string_view where) {
  SplitPattern pattern("", where);  // the empty text matches everywhere, like a regular expression
  if (!text.empty()) {
    auto code = std::make_shared<Code>();
    code->literal = std::string(text);
    pattern.code_ = std::move(code);
  }
  return pattern;
}

template <class Found>
void SplitPattern::for_each_match_in_utf8(std::string_view text, Budget& budget,
                                          Found&& found) const {
  // One per thread: allocating it takes longer than matching a short piece.
  thread_local Regex::Finds finds;
  std::size_t from = 0;                       // the search starts here
  std::size_t last = std::string_view::npos;  // end of the previous match
  while (from <= text.size()) {
    budget.tick();
    const Regex::Outcome outcome = code_->regex->search(text, from, finds);
    if (outcome == Regex::Outcome::kNone) break;
    if (outcome == Regex::Outcome::kFailed)
      throw Error(finds.failure(format("The tokenizer's pattern {} on a text of {} bytes",
                                       quoted_pattern(code_->source), text.size())));
    const auto [begin, last_end] = finds.match();
    const std::size_t end = std::max(begin, last_end);  // pcre_of_onig never writes \K
    if (begin == end && end == last) {                  // an empty match after another is skipped
      if (from >= text.size()) break;
      from += utf8::front(text.substr(from)).bytes;
      continue;
    }
    found(begin, end);
    last = from = end;
  }
}

template <class Found>
void SplitPattern::for_each_match(std::string_view text, Budget& budget, Found&& found) const {
  if (text.empty()) return;
  if (!code_->literal.empty()) {
    for (std::size_t at = 0; (at = text.find(code_->literal, at)) != std::string_view::npos;) {
      found(at, at + code_->literal.size());
      at += code_->literal.size();
    }
    return;
  }
  if (is_utf8(text)) return for_each_match_in_utf8(text, budget, found);
  // Search the valid UTF-8 between invalid bytes.
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    utf8::Point p;
    while (end < text.size() && (p = utf8::front(text.substr(end))).value >= 0) end += p.bytes;
    if (end > at) {
      for_each_match_in_utf8(text.substr(at, end - at), budget,
                             [&](std::size_t b, std::size_t e) { found(at + b, at + e); });
    }
    at = end + (end < text.size() ? p.bytes : 0);
  }
}

void SplitPattern::match(std::string_view text, std::vector<MatchPart>& parts,
                         Budget& budget) const {
  std::size_t done = 0;
  for_each_match(text, budget, [&](std::size_t begin, std::size_t end) {
    if (begin > done) parts.push_back({done, begin, false});
    parts.push_back({begin, end, true});
    done = end;
  });
  if (done < text.size()) parts.push_back({done, text.size(), false});
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces,
                         Budget& budget) const {
  std::size_t done = 0;
  for_each_match(text, budget, [&](std::size_t begin, std::size_t end) {
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    done = end;
  });
  if (done < text.size()) pieces.push_back(text.substr(done));
}

std::string SplitPattern::replace(std::string_view text, std::string_view by,
                                  Budget& budget) const {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  const auto write = [&](std::string_view part) {
    budget.take(part.size());
    out += part;
  };
  std::size_t done = 0;
  for_each_match(text, budget, [&](std::size_t begin, std::size_t end) {
    write(text.substr(done, begin - done));
    write(by);
    done = end;
  });
  write(text.substr(done));
  return out;
}

void split_parts(std::string_view text, const std::vector<MatchPart>& parts, SplitBehavior behavior,
                 std::vector<std::string_view>& pieces) {
  std::vector<MatchPart> joined;
  const auto fold = [&](const MatchPart& part, bool joins) {
    if (joins && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, part.begin);
      joined.back().end = std::max(joined.back().end, part.end);
    } else {
      joined.push_back(part);
    }
  };
  bool previous = false;  // the previous part was a match
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      fold(*part, part->match && !previous);
      previous = part->match;
    }
    std::reverse(joined.begin(), joined.end());
  } else {
    for (const MatchPart& part : parts) {
      if (behavior == SplitBehavior::kRemoved && part.match) continue;
      fold(part, behavior == SplitBehavior::kContiguous           ? part.match == previous
                 : behavior == SplitBehavior::kMergedWithPrevious ? part.match && !previous
                                                                  : false);
      previous = part.match;
    }
  }
  for (const MatchPart& part : joined) {
    if (part.end > part.begin) pieces.push_back(text.substr(part.begin, part.end - part.begin));
  }
}

}  // namespace neap::text

#include "model/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "model/onig_pattern.h"
#include "model/utf8.h"

namespace neap::model {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {
constexpr std::size_t kMaxReplaced = std::size_t{1} << 30;

std::string message_of(int number) {
  unsigned char message[160] = {};
  pcre2_get_error_message(number, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}
}  // namespace

struct SplitPattern::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string source;
  std::string literal;  // not empty: searched for without an expression
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string_view pattern, std::string_view where) {
  const std::string translated = pcre_of_onig(pattern, where);
  int number = 0;
  PCRE2_SIZE at = 0;
  auto compiled = std::make_shared<Code>();
  compiled->source = std::string(pattern);
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &number, &at, nullptr);
  if (compiled->code == nullptr)
    throw Error(ErrorCode::kUnsupported, format("{}: the pattern \"{}\" does not compile: {}",
                                                where, pattern, message_of(number)));
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(compiled);
}

SplitPattern SplitPattern::literal(std::string_view text, std::string_view where) {
  SplitPattern pattern("", where);  // the empty text matches everywhere, as an expression does
  if (!text.empty()) {
    auto code = std::make_shared<Code>();
    code->literal = std::string(text);
    pattern.code_ = std::move(code);
  }
  return pattern;
}

template <class Found>
void SplitPattern::for_each_match_in_utf8(std::string_view text, Found&& found) const {
  struct FreeMatch {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  // One for each thread: allocating it costs more than matching a short piece.
  thread_local const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create(1, nullptr));
  if (!match) throw Error(ErrorCode::kOutOfHostMemory, "No memory for splitting text");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
  std::size_t from = 0;                       // the search starts here
  std::size_t last = std::string_view::npos;  // end of the match before
  while (from <= text.size()) {
    int result = code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, 0,
                                              match.get(), nullptr)
                            : PCRE2_ERROR_JIT_STACKLIMIT;
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
      result = pcre2_match(code_->code, subject, text.size(), from,
                           PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw Error(ErrorCode::kUnsupported,
                  format("The tokenizer's pattern \"{}\" failed on a text of {} bytes: {}",
                         code_->source, text.size(), message_of(result)));
    const std::size_t begin = ends[0];
    const std::size_t end = std::max(begin, ends[1]);  // \K cannot be written, see pcre_of_onig
    if (begin == end && end == last) {  // an empty match right behind another is none
      if (from >= text.size()) break;
      from += utf8::front(text.substr(from)).bytes;
      continue;
    }
    found(begin, end);
    last = from = end;
  }
}

template <class Found>
void SplitPattern::for_each_match(std::string_view text, Found&& found) const {
  if (text.empty()) return;
  if (!code_->literal.empty()) {
    for (std::size_t at = 0; (at = text.find(code_->literal, at)) != std::string_view::npos;) {
      found(at, at + code_->literal.size());
      at += code_->literal.size();
    }
    return;
  }
  if (is_utf8(text)) return for_each_match_in_utf8(text, found);
  // What is UTF-8 between bytes that are not.
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    utf8::Point p;
    while (end < text.size() && (p = utf8::front(text.substr(end))).value >= 0) end += p.bytes;
    if (end > at) {
      for_each_match_in_utf8(text.substr(at, end - at),
                             [&](std::size_t b, std::size_t e) { found(at + b, at + e); });
    }
    at = end + (end < text.size() ? p.bytes : 0);
  }
}

void SplitPattern::match(std::string_view text, std::vector<MatchPart>& parts) const {
  std::size_t done = 0;
  for_each_match(text, [&](std::size_t begin, std::size_t end) {
    if (begin > done) parts.push_back({done, begin, false});
    parts.push_back({begin, end, true});
    done = end;
  });
  if (done < text.size()) parts.push_back({done, text.size(), false});
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  std::size_t done = 0;
  for_each_match(text, [&](std::size_t begin, std::size_t end) {
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    done = end;
  });
  if (done < text.size()) pieces.push_back(text.substr(done));
}

std::string SplitPattern::replace(std::string_view text, std::string_view by) const {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  std::size_t done = 0;
  for_each_match(text, [&](std::size_t begin, std::size_t end) {
    out += text.substr(done, begin - done);
    out += by;
    done = end;
    if (out.size() > kMaxReplaced)
      throw Error(ErrorCode::kUnsupported,
                  format("Replacing in a text of {} bytes made more than 1 GiB", text.size()));
  });
  out += text.substr(done);
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
  bool previous = false;  // whether the part before was a match
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

}  // namespace neap::model

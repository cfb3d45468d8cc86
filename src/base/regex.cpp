#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/budget.h"
#include "base/format.h"

namespace neap {
namespace {

std::string message_of(int number) {
  std::array<unsigned char, 160> message{};
  pcre2_get_error_message(number, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

// Result of a search that used up its time; PCRE2 has no such number.
constexpr int kOutOfTime = -1'000'000;

pcre2_match_data* data_of(void* finds) {
  return static_cast<pcre2_match_data*>(finds);
}
pcre2_match_context* context_of(void* finds) {
  return static_cast<pcre2_match_context*>(finds);
}

std::uint32_t number_32(double value) {
  return static_cast<std::uint32_t>(std::min(value, static_cast<double>(UINT32_MAX)));
}

// The first position from `at` at which a character may begin.
std::size_t next_character(std::string_view text, std::size_t at) {
  constexpr std::size_t kMostBytes = 4;
  for (std::size_t i = 0; i < kMostBytes && at + i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return at + i;
  return std::min(at, text.size());
}

// The limit that a search exceeded.
std::optional<Excess> excess_of(int result) {
  switch (result) {
    case PCRE2_ERROR_MATCHLIMIT:
    case PCRE2_ERROR_DEPTHLIMIT:
      return Excess::kSteps;
    case PCRE2_ERROR_HEAPLIMIT:
      return Excess::kMemory;
    case kOutOfTime:
      return Excess::kSeconds;
    default:
      return std::nullopt;
  }
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  const ReadLimits& limits;
  bool has_group = false;
  bool jit = false;
  bool jit_only = false;  ///< the fast entry point, which checks nothing
  bool in_spans = false;  ///< looks at the clock between spans of starts
  bool of_lines = false;  ///< a match begins where a line does
  std::uint32_t unchecked = 0;
  explicit Code(const ReadLimits& of) : limits(of) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }

  int match(std::string_view text, std::size_t from, pcre2_match_data* data,
            pcre2_match_context* context) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const auto interpret = [&](std::uint32_t flags) {
      return pcre2_match(code, subject, text.size(), from, flags, data, context);
    };
    const int result = jit_only
                           ? pcre2_jit_match(code, subject, text.size(), from, 0, data, context)
                           : interpret(unchecked);
    return result == PCRE2_ERROR_JIT_STACKLIMIT ? interpret(PCRE2_NO_JIT | unchecked) : result;
  }
  int match_in_spans(std::string_view text, std::size_t from, pcre2_match_data* data,
                     pcre2_match_context* context) const;
};

// PCRE2 counts the steps from each start anew, and a long text has many. Spans are small, so that few
// starts are tried before the clock is looked at. Without JIT a call may read the rest of the text,
// so that fewer calls are made.
int Regex::Code::match_in_spans(std::string_view text, std::size_t from, pcre2_match_data* data,
                                pcre2_match_context* context) const {
  constexpr std::size_t kFirst = 16;
  const std::size_t most_starts = jit ? 256 : 4096;
  constexpr double kSoon = 1e-3;  // seconds
  std::optional<double> began;
  double before = 0;
  for (std::size_t starts = kFirst;;) {
    const std::size_t end = next_character(text, from + starts);
    pcre2_set_offset_limit(context, end < text.size() ? end - 1 : PCRE2_UNSET);
    const int result = match(text, from, data, context);
    if (result != PCRE2_ERROR_NOMATCH || end >= text.size()) return result;
    const double now = processor_seconds();
    const double most = limits.seconds.of(text.size());
    if (began) {
      if (most > 0 && now - *began > most) return kOutOfTime;
      starts = now - before < kSoon ? std::min(starts * 2, most_starts)
                                    : std::max(starts / 2, std::size_t{1});
    } else {
      began = now;  // the first span is not timed, because most texts end in it
    }
    before = now;
    from = end;
    if (!of_lines) continue;
    // PCRE2 tries the first start of a call, even inside a line.
    const std::size_t line = text.find('\n', end - 1);
    if (line == std::string_view::npos) return PCRE2_ERROR_NOMATCH;
    from = line + 1;
  }
}

Result<Regex> Regex::compile(std::string_view pattern, const ReadLimits& limits,
                             const Options& options) {
  std::uint32_t flags = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (options.whole_text) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  if (options.unicode) flags |= PCRE2_UCP;
  if (options.multiline) flags |= PCRE2_MULTILINE;
  if (!options.valid_utf8) flags |= PCRE2_MATCH_INVALID_UTF;
  const bool in_spans = options.divisible && !options.whole_text;
  if (in_spans) flags |= PCRE2_USE_OFFSET_LIMIT;
  int number = 0;
  PCRE2_SIZE at = 0;
  auto made = std::make_shared<Code>(limits);
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), flags,
                             &number, &at, nullptr);
  if (made->code == nullptr)
    return Status(ErrorCode::kInvalidArgument,
                  format("{} (character {})", message_of(number), at + 1));
  std::uint32_t all_flags = 0, first_code = 0;
  pcre2_pattern_info(made->code, PCRE2_INFO_ALLOPTIONS, &all_flags);
  pcre2_pattern_info(made->code, PCRE2_INFO_FIRSTCODETYPE, &first_code);
  made->in_spans = in_spans && (all_flags & PCRE2_ANCHORED) == 0;  // else there is one start
  constexpr std::uint32_t kStartsLines = 2;
  made->of_lines = first_code == kStartsLines;
  made->jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
  made->jit_only = made->jit && options.valid_utf8;
  made->unchecked = options.valid_utf8 ? PCRE2_NO_UTF_CHECK : 0;
  std::uint32_t groups = 0;
  pcre2_pattern_info(made->code, PCRE2_INFO_CAPTURECOUNT, &groups);
  made->has_group = groups > 0;
  Regex out;
  out.code_ = std::move(made);
  return out;
}

Regex::Finds::Finds()
    : data_(pcre2_match_data_create(2, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      ends_(data_ == nullptr ? nullptr : pcre2_get_ovector_pointer(data_of(data_))) {}
Regex::Finds::~Finds() {
  pcre2_match_data_free(data_of(data_));
  pcre2_match_context_free(context_of(context_));
}

std::optional<Regex::Range> Regex::Finds::first_group() const {
  if (!has_group_) return match();
  if (ends_[2] == PCRE2_UNSET || ends_[2] > ends_[3]) return std::nullopt;
  return Range{ends_[2], ends_[3]};
}

Status Regex::Finds::failure(std::string_view where) const {
  if (const auto excess = excess_of(result_)) return over_limit(where, *limits_, *excess, bytes_);
  return {
      result_ == PCRE2_ERROR_NOMEMORY ? ErrorCode::kOutOfHostMemory : ErrorCode::kInvalidArgument,
      format("{} failed on a text of {} bytes: {}", where, bytes_, message_of(result_))};
}

Regex::Outcome Regex::search(std::string_view text, std::size_t from, Finds& finds) const {
  pcre2_match_data* const data = data_of(finds.data_);
  pcre2_match_context* const context = context_of(finds.context_);
  const ReadLimits& limits = code_->limits;
  finds.has_group_ = code_->has_group;
  finds.limits_ = &limits;
  finds.bytes_ = text.size();
  finds.result_ = PCRE2_ERROR_NOMEMORY;
  if (data == nullptr || context == nullptr) return Outcome::kFailed;
  pcre2_set_match_limit(context, number_32(limits.steps.of(text.size())));
  pcre2_set_heap_limit(context, number_32(limits.memory.of(text.size()) / 1024));
  pcre2_set_offset_limit(context, PCRE2_UNSET);
  finds.result_ = code_->in_spans ? code_->match_in_spans(text, from, data, context)
                                  : code_->match(text, from, data, context);
  if (finds.result_ >= 0) return Outcome::kFound;
  return finds.result_ == PCRE2_ERROR_NOMATCH ? Outcome::kNone : Outcome::kFailed;
}

}  // namespace neap

#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/format.h"

namespace neap {
namespace {

std::string message_of(int number) {
  std::array<unsigned char, 160> message{};
  pcre2_get_error_message(number, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

pcre2_match_data* data_of(void* finds) {
  return static_cast<pcre2_match_data*>(finds);
}
pcre2_match_context* limits_of(void* finds) {
  return static_cast<pcre2_match_context*>(finds);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  Options options;
  bool has_group = false;
  bool jit_only = false;  ///< the fast entry point, which checks nothing
  std::uint32_t unchecked = 0;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Result<Regex> Regex::compile(std::string_view pattern, const Options& options) {
  std::uint32_t flags = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (options.whole_text) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  if (options.unicode) flags |= PCRE2_UCP;
  if (options.multiline) flags |= PCRE2_MULTILINE;
  if (!options.valid_utf8) flags |= PCRE2_MATCH_INVALID_UTF;
  int number = 0;
  PCRE2_SIZE at = 0;
  auto made = std::make_shared<Code>();
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), flags,
                             &number, &at, nullptr);
  if (made->code == nullptr)
    return Status(ErrorCode::kInvalidArgument,
                  format("{} (character {})", message_of(number), at + 1));
  made->options = options;
  const bool jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
  made->jit_only = jit && options.valid_utf8;
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
      limits_(pcre2_match_context_create(nullptr)),
      ends_(data_ == nullptr ? nullptr : pcre2_get_ovector_pointer(data_of(data_))) {}
Regex::Finds::~Finds() {
  pcre2_match_data_free(data_of(data_));
  pcre2_match_context_free(limits_of(limits_));
}

std::optional<Regex::Range> Regex::Finds::first_group() const {
  if (!has_group_) return match();
  if (ends_[2] == PCRE2_UNSET || ends_[2] > ends_[3]) return std::nullopt;
  return Range{ends_[2], ends_[3]};
}

std::string Regex::Finds::reason() const {
  return message_of(result_);
}

Regex::Outcome Regex::search(std::string_view text, std::size_t from, Finds& finds) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* const data = data_of(finds.data_);
  finds.has_group_ = code_->has_group;
  finds.result_ = PCRE2_ERROR_NOMEMORY;
  pcre2_match_context* const limits = limits_of(finds.limits_);
  if (data == nullptr || limits == nullptr) return Outcome::kGaveUp;
  const Options& options = code_->options;
  const std::uint64_t heap =
      (options.memory_limit + options.memory_of_byte * text.size()).count() >> 10;
  pcre2_set_match_limit(limits, options.step_limit);
  pcre2_set_heap_limit(limits,
                       static_cast<std::uint32_t>(std::min<std::uint64_t>(heap, UINT32_MAX)));
  const auto match = [&](std::uint32_t flags) {
    return pcre2_match(code_->code, subject, text.size(), from, flags, data, limits);
  };
  int result = code_->jit_only
                   ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, data, limits)
                   : match(code_->unchecked);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT | code_->unchecked);
  finds.result_ = result;
  if (result >= 0) return Outcome::kFound;
  return result == PCRE2_ERROR_NOMATCH ? Outcome::kNone : Outcome::kGaveUp;
}

}  // namespace neap

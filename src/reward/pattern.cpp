#include "reward/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "base/format.h"

namespace neap::reward {
namespace {

constexpr std::uint32_t kMatchLimit = 5'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 << 10;
constexpr int kMaxMatches = 10'000;

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  pcre2_match_data* found = nullptr;
  std::atomic<std::uint64_t> gave_up{0};
  std::mutex mutex;  // of `found`
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_data_free(found);
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

Result<Pattern> Pattern::compile(std::string_view pattern) {
  int number = 0;
  PCRE2_SIZE at = 0;
  auto made = std::make_shared<Code>();
  made->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &number, &at, nullptr);
  if (made->code == nullptr) {
    unsigned char message[160] = {};
    pcre2_get_error_message(number, message, sizeof message);
    return Status(ErrorCode::kInvalidArgument,
                  format("The pattern \"{}\" does not compile: {} (character {})", pattern,
                         reinterpret_cast<const char*>(message), at + 1));
  }
  made->limits = pcre2_match_context_create(nullptr);
  made->found = pcre2_match_data_create(2, nullptr);
  if (made->limits == nullptr || made->found == nullptr)
    return Status(ErrorCode::kOutOfHostMemory, "No memory for a regular expression");
  pcre2_set_match_limit(made->limits, kMatchLimit);
  pcre2_set_heap_limit(made->limits, kHeapLimitKib);
  (void)pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);  // without it the interpreter runs
  Pattern out;
  out.code_ = std::move(made);
  return out;
}

bool Pattern::match(std::string_view text, std::size_t from) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int result = pcre2_match(code_->code, subject, text.size(), from, 0, code_->found, code_->limits);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_JIT, code_->found,
                         code_->limits);
  if (result >= 0) return true;
  if (result != PCRE2_ERROR_NOMATCH) code_->gave_up.fetch_add(1, std::memory_order_relaxed);
  return false;
}

bool Pattern::found_in(std::string_view text) const {
  const std::lock_guard lock(code_->mutex);
  return match(text, 0);
}

std::optional<std::string_view> Pattern::last_match(std::string_view text) const {
  const std::lock_guard lock(code_->mutex);
  std::uint32_t groups = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_CAPTURECOUNT, &groups);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(code_->found);
  const std::size_t group = groups > 0 ? 2 : 0;
  std::optional<std::string_view> last;
  std::size_t from = 0;
  for (int count = 0; count < kMaxMatches && from <= text.size() && match(text, from); ++count) {
    if (ends[group] != PCRE2_UNSET && ends[group] <= ends[group + 1])
      last = text.substr(ends[group], ends[group + 1] - ends[group]);
    from = std::max(ends[1], from + (ends[1] <= from ? 1 : 0));
  }
  return last;
}

std::uint64_t Pattern::gave_up() const {
  return code_->gave_up.load(std::memory_order_relaxed);
}

}  // namespace neap::reward

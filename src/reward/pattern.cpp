#include "reward/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>
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
  std::atomic<std::uint64_t> gave_up{0};
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
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
  if (made->limits == nullptr)
    return Status(ErrorCode::kOutOfHostMemory, "No memory for a regular expression");
  pcre2_set_match_limit(made->limits, kMatchLimit);
  pcre2_set_heap_limit(made->limits, kHeapLimitKib);
  (void)pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);  // without it the interpreter runs
  Pattern out;
  out.code_ = std::move(made);
  return out;
}

// One search at a time; a thread has its own.
class Pattern::Search {
 public:
  Search(Code& code, std::string_view text)
      : code_(code), text_(text), found_(pcre2_match_data_create(2, nullptr)) {}
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;
  ~Search() { pcre2_match_data_free(found_); }

  [[nodiscard]] bool match(std::size_t from) {
    if (found_ == nullptr) return give_up();
    int result = match(from, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(from, PCRE2_NO_JIT);
    return result >= 0 || (result != PCRE2_ERROR_NOMATCH && give_up());
  }
  /// Of the last match: of `group` 2 g where it begins, and 2 g + 1 where it ends.
  [[nodiscard]] const PCRE2_SIZE* ends() const { return pcre2_get_ovector_pointer(found_); }

 private:
  [[nodiscard]] int match(std::size_t from, std::uint32_t options) {
    return pcre2_match(code_.code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from,
                       options, found_, code_.limits);
  }
  bool give_up() {
    code_.gave_up.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  Code& code_;
  std::string_view text_;
  pcre2_match_data* found_;
};

bool Pattern::found_in(std::string_view text) const {
  return Search(*code_, text).match(0);
}

std::optional<std::string_view> Pattern::last_match(std::string_view text) const {
  std::uint32_t groups = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_CAPTURECOUNT, &groups);
  const std::size_t group = groups > 0 ? 2 : 0;
  Search search(*code_, text);
  std::optional<std::string_view> last;
  std::size_t from = 0;
  for (int count = 0; count < kMaxMatches && from <= text.size() && search.match(from); ++count) {
    const PCRE2_SIZE* ends = search.ends();
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

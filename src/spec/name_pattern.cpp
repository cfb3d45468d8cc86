#include "spec/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <utility>

#include "base/format.h"

namespace neap::spec {
namespace {

constexpr std::size_t kLongest = 2000;
constexpr std::uint32_t kMatchLimit = 100'000, kHeapLimitKib = 8 << 10;

Status refused(std::string_view text, std::string_view why) {
  return {ErrorCode::kUnsupported,
          format("the regular expression \"{}\" {}", text.substr(0, 100), why)};
}

}  // namespace

struct NamePattern::Code {
  pcre2_code* code = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Result<NamePattern> NamePattern::compile(std::string_view text) {
  if (text.size() > kLongest) return refused(text, format("has over {} bytes", kLongest));
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  auto made = std::make_shared<Code>();
  if (context == nullptr)
    return Status(ErrorCode::kOutOfHostMemory, "No memory for a regular expression");
  pcre2_set_parens_nest_limit(context.get(), 100);
  int number = 0;
  PCRE2_SIZE at = 0;
  made->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C,
                    &number, &at, context.get());
  if (made->code == nullptr) {
    unsigned char message[160] = {};
    pcre2_get_error_message(number, message, sizeof message);
    return refused(text, format("is not valid: {}", reinterpret_cast<const char*>(message)));
  }
  return NamePattern(std::move(made));
}

bool NamePattern::matches(std::string_view path) const {
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> limits(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> found(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (limits == nullptr || found == nullptr) return false;
  pcre2_set_match_limit(limits.get(), kMatchLimit);
  pcre2_set_heap_limit(limits.get(), kHeapLimitKib);
  return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(), 0, 0,
                     found.get(), limits.get()) >= 0;
}

}  // namespace neap::spec

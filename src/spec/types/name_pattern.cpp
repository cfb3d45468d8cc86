#include "spec/types/name_pattern.h"

#include "base/format.h"
#include "base/text.h"

namespace neap::spec {
namespace {

constexpr std::size_t kLongest = 2000;
constexpr std::uint32_t kStepLimit = 100'000;
constexpr Bytes kMemoryLimit = 8_MiB;

}  // namespace

Result<NamePattern> NamePattern::compile(std::string_view text) {
  const auto refused = [&](std::string_view why) {
    return Status(ErrorCode::kUnsupported,
                  format("the regular expression \"{}\" {}", excerpt(text, 100), why));
  };
  if (text.size() > kLongest) return refused(format("has over {} bytes", kLongest));
  auto regex = Regex::compile(text, {.whole_text = true,
                                     .unicode = false,
                                     .step_limit = kStepLimit,
                                     .memory_limit = kMemoryLimit});
  if (!regex.ok()) return refused(format("does not compile: {}", regex.status().message()));
  return NamePattern(std::move(*regex));
}

bool NamePattern::matches(std::string_view path) const {
  Regex::Finds finds;
  return regex_.search(path, 0, finds) == Regex::Outcome::kFound;
}

}  // namespace neap::spec

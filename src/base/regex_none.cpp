// Replaces regex.cpp in builds without PCRE2.
#include "base/regex.h"

namespace neap {

struct Regex::Code {};

Result<Regex> Regex::compile(std::string_view, const ReadLimits&, const Options&) {
  return Status(ErrorCode::kUnsupported, "this build lacks PCRE2");
}
Regex::Finds::Finds() : data_(nullptr), context_(nullptr), ends_(nullptr) {}
Regex::Finds::~Finds() = default;
std::optional<Regex::Range> Regex::Finds::first_group() const {
  return std::nullopt;
}
Status Regex::Finds::failure(std::string_view) const {
  return {};
}
Regex::Outcome Regex::search(std::string_view, std::size_t, Finds&) const {
  return Outcome::kNone;
}

}  // namespace neap

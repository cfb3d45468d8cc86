#include "spec/types/fields.h"

#include <cmath>

#include "base/format.h"

namespace neap::spec {
namespace {

// The value's JSON, shortened for messages.
std::string shown(const Json& value) {
  constexpr std::size_t kLimit = 80;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kLimit) text.replace(kLimit, std::string::npos, "...");
  return text;
}

}  // namespace

std::int64_t Fields::integer(const char* key, std::int64_t missing, Range range) {
  if (is_null(key)) fail(key, "is null, not an integer");
  return integer_or_null(key, missing, range).value_or(range.low);
}

std::optional<std::int64_t> Fields::integer_or_null(const char* key,
                                                    std::optional<std::int64_t> missing,
                                                    Range range) {
  if (!has(key)) return missing;
  const Json& v = json_[key];
  if (v.is_null()) return std::nullopt;
  if (!v.is_number_integer()) {
    fail(key, format("is {}, not an integer", shown(v)));
    return range.low;
  }
  // nlohmann stores literals over 2^63 - 1 as unsigned.
  const bool huge =
      v.is_number_unsigned() && v.get<std::uint64_t>() > static_cast<std::uint64_t>(range.high);
  if (huge || v.get<std::int64_t>() < range.low || v.get<std::int64_t>() > range.high) {
    fail(key, format("is {}; it can be {} to {}", shown(v), range.low, range.high));
    return range.low;
  }
  return v.get<std::int64_t>();
}

double Fields::number(const char* key, double missing) {
  if (!has(key)) return missing;
  const Json& v = json_[key];
  if (!v.is_number() || !std::isfinite(v.get<double>())) {
    fail(key, format("is {}, not a number", shown(v)));
    return 1;
  }
  return v.get<double>();
}

double Fields::positive(const char* key, double missing) {
  const double v = number(key, missing);
  if (v > 0) return v;
  fail(key, format("is {}; it must be greater than 0", v));
  return 1;
}

std::optional<double> Fields::positive_or_null(const char* key, std::optional<double> missing) {
  if (!has(key)) return missing;
  if (is_null(key)) return std::nullopt;
  return positive(key, 0);
}

bool Fields::boolean(const char* key, bool missing) {
  if (!has(key)) return missing;
  if (json_[key].is_boolean()) return json_[key].get<bool>();
  fail(key, format("is {}, not true or false", shown(json_[key])));
  return missing;
}

std::string Fields::text(const char* key, const std::string& missing) {
  if (!has(key)) return missing;
  if (json_[key].is_string()) return json_[key].get<std::string>();
  fail(key, format("is {}, not text", shown(json_[key])));
  return missing;
}

Fields Fields::object(const char* key) const {
  return {json_[key], format("{}: {}", where_, key)};
}

void Fields::fail(std::string_view key, std::string_view what) {
  if (status_.ok())
    status_ = Status(ErrorCode::kInvalidArgument, format("{}: {} {}", where_, key, what));
}

void Fields::refuse(std::string_view key, std::string_view what) {
  if (status_.ok())
    status_ = Status(ErrorCode::kUnsupported, format("{}: {} {}", where_, key, what));
}

void Fields::absorb(const Fields& inner) {
  if (status_.ok()) status_ = inner.status();
}

}  // namespace neap::spec

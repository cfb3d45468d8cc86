// Reads the keys of a config.json object by Hugging Face's rules: a missing key has the class's
// default, and null is a value.
//
// Threads   one at a time; the JSON and `where` must outlive the reader.
// Failure   status() keeps the first failure, with file, key and value. Later reads return values
//           within their bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace neap::spec {

// With these bounds, products of sizes from an untrusted file fit in 64 bits.
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 26;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 26;

struct Range {
  std::int64_t low = 1, high = kMaxWidth;
};

class Fields {
 public:
  Fields(const Json& json, std::string_view where) : json_(json), where_(where) {}

  /// Whether the key exists; it may be null.
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  [[nodiscard]] bool is_null(const char* key) const { return has(key) && json_[key].is_null(); }
  [[nodiscard]] const Json& value(const char* key) const { return json_[key]; }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t missing, Range range = {});
  /// Null reads as nullopt.
  [[nodiscard]] std::optional<std::int64_t> integer_or_null(const char* key,
                                                            std::optional<std::int64_t> missing,
                                                            Range range = {});
  /// Must be finite.
  [[nodiscard]] double number(const char* key, double missing);
  /// Must be greater than zero.
  [[nodiscard]] double positive(const char* key, double missing);
  /// Must be greater than zero; null reads as nullopt.
  [[nodiscard]] std::optional<double> positive_or_null(const char* key,
                                                       std::optional<double> missing);
  [[nodiscard]] bool boolean(const char* key, bool missing);
  [[nodiscard]] std::string text(const char* key, const std::string& missing);
  /// A reader for the key's value, which must be an object.
  [[nodiscard]] Fields object(const char* key) const;

  /// kInvalidArgument: "<where>: <key> <what>".
  void fail(std::string_view key, std::string_view what);
  /// kUnsupported: a value whose computation is not implemented.
  void refuse(std::string_view key, std::string_view what);
  /// Takes over the failure of an inner object's reader.
  void absorb(const Fields& inner);
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Json& json_;
  std::string where_;
  Status status_;
};

}  // namespace neap::spec

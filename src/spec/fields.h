// Reads the keys of one config.json object with Hugging Face's rules: a missing key has the class's
// default, null is a value.
//
// Threads   one at a time; the JSON and `where` outlive the reader.
// Failure   the first one stays in status(), with file, key and value; later reads return values
//           inside their bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace neap::spec {

// Bounds that keep every product of a hostile config inside 64 bits.
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

  /// The key is there, perhaps as null.
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  [[nodiscard]] bool is_null(const char* key) const { return has(key) && json_[key].is_null(); }
  [[nodiscard]] const Json& value(const char* key) const { return json_[key]; }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t missing, Range range = {});
  /// Null reads as nullopt.
  [[nodiscard]] std::optional<std::int64_t> integer_or_null(const char* key,
                                                            std::optional<std::int64_t> missing,
                                                            Range range = {});
  /// Finite.
  [[nodiscard]] double number(const char* key, double missing);
  /// Greater than zero.
  [[nodiscard]] double positive(const char* key, double missing);
  /// Greater than zero; null reads as nullopt.
  [[nodiscard]] std::optional<double> positive_or_null(const char* key,
                                                       std::optional<double> missing);
  [[nodiscard]] bool boolean(const char* key, bool missing);
  [[nodiscard]] std::string text(const char* key, const std::string& missing);
  /// The key's value is an object; its members are read with object().
  [[nodiscard]] Fields object(const char* key) const;

  /// kInvalidArgument: "<where>: <key> <what>".
  void fail(std::string_view key, std::string_view what);
  /// kUnsupported: a value that the passes do not compute.
  void refuse(std::string_view key, std::string_view what);
  /// Takes over the failure of a reader of an object inside this one.
  void absorb(const Fields& inner);
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Json& json_;
  std::string where_;
  Status status_;
};

}  // namespace neap::spec

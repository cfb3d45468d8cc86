#include "base/json.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"

namespace neap {
namespace {

// The parser's reason ends with the text at which it stopped. That text may have any bytes and any
// length.
std::string shown(std::string_view reason) {
  constexpr std::size_t kStart = 160, kEnd = 80;
  if (const auto id = reason.find("] ");
      reason.starts_with("[json.exception") && id < reason.size())
    reason.remove_prefix(id + 2);  // nlohmann's, of the kind of error
  if (reason.size() <= kStart + kEnd) return printable(reason);
  return printable(front_of(reason, kStart)) + " ... " +
         printable(reason.substr(reason.size() - kEnd));
}

/// Builds a Json from the events of nlohmann's parser. Json finds a member by comparing names one
/// by one, so an object with many members gets an index while it is read. The last of several
/// members with one name counts.
class Builder {
 public:
  // nlohmann requires these names.
  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(Json::number_integer_t value) { return put(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  static bool binary(const Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& name) {
    Object& object = open_.back();
    Json::object_t::Container& members = object.value->get_ref<Json::object_t&>();
    if (members.size() == kFew)
      for (std::size_t i = 0; i < kFew; ++i) object.places.emplace(members[i].first, i);
    std::size_t place = members.size();
    if (members.size() < kFew) {
      for (place = 0; place < members.size() && members[place].first != name;) ++place;
    } else {
      place = object.places.emplace(name, place).first->second;
    }
    if (place == members.size()) members.emplace_back(std::move(name), nullptr);
    member_ = &members[place].second;
    return true;
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) {
    error_ = error.what();
    return false;
  }

  [[nodiscard]] Json take() { return std::move(root_); }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  static constexpr std::size_t kFew = 16;
  /// An object or array that has not ended.
  struct Object {
    Json* value;
    std::unordered_map<std::string, std::size_t> places;  // index of objects with > kFew members
  };
  Json* add(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back().value->is_object()) return &(*member_ = std::move(value));
    auto& items = open_.back().value->get_ref<Json::array_t&>();
    return &items.emplace_back(std::move(value));
  }
  bool put(Json value) {
    add(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back({add(std::move(value)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Object> open_;  // outermost first
  Json* member_ = nullptr;    // value of the last key
  std::string error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, const ReadLimits& limits) {
  // Copying and printing are recursive: deep nesting would overflow the stack.
  NEAP_TRY(check_json(text, where, limits));
  NEAP_TRY(check_not_utf16(text, where));
  Builder builder;
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  return Status(ErrorCode::kCorrupt,
                format("{}: not valid JSON: {}", where, shown(builder.error())));
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace neap

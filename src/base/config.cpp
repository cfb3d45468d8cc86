// Binds keys to fields, and sets their values.
#include "base/config.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/format.h"
#include "base/text.h"

namespace neap {
namespace {

std::string toml_text(const Json& value) {
  return value.is_null() ? "" : value.dump();
}

std::string number_text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

bool is_finite(const Json& value) {
  return !value.is_number() || std::isfinite(value.get<double>());
}

// JSON cannot represent infinity and NaN.
std::string given_text(const Json& value) {
  return is_finite(value) ? excerpt(value.dump(), 200) : number_text(value.get<double>());
}

std::string type_name(const Json& value) {
  if (value.is_boolean()) return "a boolean";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "text";
  if (value.is_array()) return "a list";
  return "a date or table";
}

Status wrong_type(const std::string& wanted, const Json& value) {
  return {ErrorCode::kInvalidArgument,
          "takes " + wanted + ", not " + type_name(value) + " (" + given_text(value) + ")"};
}

constexpr const char* kListOfText = "list of text";

bool is_text(const Json& item) {
  return item.is_string();
}

// A single item is accepted as a list of one.
template <class T>
Status read_list(const Json& value, const std::string& type, bool (*accepts)(const Json&),
                 std::vector<T>& out) {
  const Json list = accepts(value) ? Json::array({value}) : value;
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), accepts))
    return wrong_type("a " + type, value);
  out = list.get<std::vector<T>>();
  return {};
}

template <class T>
ConfigTable::Key& bind_list_of(ConfigTable::Key& key, std::vector<T>* field,
                               bool (*accepts)(const Json&)) {
  key.assign = [field, accepts, type = key.type](const Json& v) {
    return read_list(v, type, accepts, *field);
  };
  key.read = [field]() -> Json { return *field; };
  key.default_text = toml_text(key.read());
  return key;
}

}  // namespace

std::string bound_text(double bound) {
  constexpr double kExact = 1e15;  // a double holds every integer up to here exactly
  const bool whole = bound == std::floor(bound) && std::abs(bound) < kExact;
  return whole ? std::to_string(static_cast<std::int64_t>(bound)) : number_text(bound);
}

ConfigTable::Key& ConfigTable::add(std::string path, const void* field, std::string type,
                                   std::string help) {
  keys_.push_back({});
  Key& key = keys_.back();
  key.path = std::move(path);
  key.field = field;
  key.type = std::move(type);
  key.help = std::move(help);
  key.conditions = sections_;
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, bool* field, std::string help) {
  Key& key = add(std::move(path), field, "boolean", std::move(help));
  key.assign = [field](const Json& v) -> Status {
    if (!v.is_boolean()) return wrong_type("true or false", v);
    *field = v.get<bool>();
    return {};
  };
  key.read = [field]() -> Json { return *field; };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, std::optional<bool>* field,
                                    std::string help) {
  Key& key = add(std::move(path), field, "boolean or `\"\"`", std::move(help));
  key.assign = [field](const Json& v) -> Status {
    if (v != "" && !v.is_boolean()) return wrong_type("true, false or \"\"", v);
    *field = v.is_boolean() ? std::optional(v.get<bool>()) : std::nullopt;
    return {};
  };
  key.read = [field]() -> Json { return *field ? Json(**field) : Json(""); };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, std::int64_t* field, std::string help) {
  Key& key = add(std::move(path), field, "integer", std::move(help));
  key.assign = [field](const Json& v) -> Status {
    if (!v.is_number_integer()) return wrong_type("an integer", v);
    *field = v.get<std::int64_t>();
    return {};
  };
  key.read = [field]() -> Json { return *field; };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, std::int64_t* field, bool* automatic,
                                    std::string help) {
  Key& key = add(std::move(path), field, "integer or `auto`", std::move(help));
  key.assign = [field, automatic](const Json& v) -> Status {
    *automatic = v == "auto";
    if (*automatic) return {};
    if (!v.is_number_integer()) return wrong_type("an integer or \"auto\"", v);
    *field = v.get<std::int64_t>();
    return {};
  };
  key.read = [field, automatic]() -> Json { return *automatic ? Json("auto") : Json(*field); };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, double* field, std::string help) {
  Key& key = add(std::move(path), field, "number", std::move(help));
  key.assign = [field](const Json& v) -> Status {
    if (!v.is_number()) return wrong_type("a number", v);
    *field = v.get<double>();
    return {};
  };
  key.read = [field]() -> Json { return *field; };
  key.default_text = number_text(*field);
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, std::string* field, std::string help) {
  Key& key = add(std::move(path), field, "text", std::move(help));
  key.assign = [field](const Json& v) -> Status {
    if (!v.is_string()) return wrong_type("text in quotes", v);
    *field = v.get<std::string>();
    return {};
  };
  key.read = [field]() -> Json { return *field; };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, Bytes* field, std::string help) {
  Key& key = add(std::move(path), field, "size", std::move(help));
  key.assign = [field](const Json& v) -> Status {
    if (v.is_number()) {
      return {ErrorCode::kInvalidArgument, "takes a size with its unit in quotes, as \"" +
                                               v.dump() + "MiB\" or \"" + v.dump() +
                                               "GiB\", not the bare number " + v.dump()};
    }
    if (!v.is_string()) return wrong_type("a size in quotes, as \"24GiB\"", v);
    NEAP_TRY_ASSIGN(*field, parse_bytes(v.get<std::string>()));
    return {};
  };
  key.read = [field]() -> Json { return to_string(*field); };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, std::vector<std::string>* field,
                                    std::string help) {
  return bind_list_of(add(std::move(path), field, kListOfText, std::move(help)), field, is_text);
}

ConfigTable::Key& ConfigTable::bind(std::string path, std::vector<double>* field,
                                    std::string help) {
  return bind_list_of(add(std::move(path), field, "list of numbers", std::move(help)), field,
                      [](const Json& item) { return item.is_number(); });
}

ConfigTable::Key& ConfigTable::bind(std::string path, const void* field,
                                    std::function<Status(const std::string&)> assign,
                                    std::function<std::string()> read, std::string help) {
  Key& key = add(std::move(path), field, "text", std::move(help));
  key.assign = [assign = std::move(assign)](const Json& v) -> Status {
    if (!v.is_string()) return wrong_type("text in quotes", v);
    return assign(v.get<std::string>());
  };
  key.read = [read = std::move(read)]() -> Json { return read(); };
  key.default_text = toml_text(key.read());
  return key;
}

ConfigTable::Key& ConfigTable::bind(std::string path, const void* field,
                                    std::function<Status(const std::vector<std::string>&)> assign,
                                    std::function<std::vector<std::string>()> read,
                                    std::string help) {
  Key& key = add(std::move(path), field, kListOfText, std::move(help));
  key.assign = [assign = std::move(assign)](const Json& v) -> Status {
    std::vector<std::string> texts;
    NEAP_TRY(read_list(v, kListOfText, is_text, texts));
    return assign(texts);
  };
  key.read = [read = std::move(read)]() -> Json { return read(); };
  key.default_text = toml_text(key.read());
  return key;
}

namespace {

// Every entry of a list must be one of the choices.
Status check_choices(const ConfigTable::Key& key, const Json& value, const std::string& head) {
  if (key.choices.empty()) return {};
  const auto allowed = [&](const Json& word) {
    return !word.is_string() || std::find(key.choices.begin(), key.choices.end(),
                                          word.get<std::string>()) != key.choices.end();
  };
  if (value.is_array() ? std::all_of(value.begin(), value.end(), allowed) : allowed(value))
    return {};
  std::string list;
  for (const std::string& choice : key.choices)
    list += (list.empty() ? "\"" : ", \"") + choice + "\"";
  return {ErrorCode::kInvalidArgument, head + "is " + given_text(value) +
                                           (value.is_array() ? "; it can hold " : "; it can be ") +
                                           list};
}

// A number, or each number of a list, must be finite and within the key's bounds.
Status check_numbers(const ConfigTable::Key& key, const Json& value, const std::string& head) {
  if (value.is_array()) {
    for (const Json& item : value) NEAP_TRY(check_numbers(key, item, head));
    return {};
  }
  const bool integer = key.type.starts_with("integer");
  const bool takes_numbers = integer || key.type == "number" || key.type == "list of numbers";
  if (!value.is_number() || !takes_numbers) return {};
  const std::string is = format("{}{} {}{}", head, key.type.starts_with("list") ? "has" : "is",
                                given_text(value), key.unit.empty() ? "" : " " + key.unit);
  if (!is_finite(value))
    return {ErrorCode::kInvalidArgument,
            format("{}; it takes {}", is, integer ? "an integer" : "finite numbers")};
  const double number = value.get<double>();
  if (key.minimum && number < *key.minimum)
    return {ErrorCode::kInvalidArgument,
            format("{}; the least is {}", is, bound_text(*key.minimum))};
  const auto most = key.maximum ? key.maximum : std::optional(static_cast<double>(kMostInteger));
  if ((integer || key.maximum) && number > *most)
    return {ErrorCode::kInvalidArgument, format("{}; the most is {}", is, bound_text(*most))};
  return {};
}

// Limits of lists: each table of a list takes tens of kilobytes.
Status check_count(std::size_t count, bool tables, const std::string& head) {
  constexpr std::size_t kMostTables = 1000, kMostValues = 10'000;
  const std::size_t most = tables ? kMostTables : kMostValues;
  if (count <= most) return {};
  return {ErrorCode::kInvalidArgument,
          format("{}has {} {}; the most is {}", head, count, tables ? "tables" : "values", most)};
}

// The value of an unset text or list if that is empty; else null.
Json empty_default(const ConfigTable::Key& key) {
  for (const Json& empty : {Json(""), Json::array()})
    if (key.default_text == toml_text(empty)) return empty;
  return nullptr;
}

}  // namespace

Status ConfigTable::set(std::string_view path, const Json& value, const std::string& origin) {
  // Messages contain the path. Finding the nearest key takes time proportional to the path's
  // length.
  constexpr std::size_t kMostPath = 1000, kShown = 60;
  if (path.size() > kMostPath)
    return {ErrorCode::kInvalidArgument,
            format("{}: the key \"{}\" has {} bytes; the most is {}", excerpt(origin, kMostPath),
                   excerpt(path, kShown), path.size(), kMostPath)};
  const auto it =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.path == path; });
  if (it == keys_.end()) {
    std::string_view rest;
    if (const List* list = list_of(path, &rest)) {
      List& found = lists_[static_cast<std::size_t>(list - lists_.data())];
      const std::string head = origin + ": " + prefix_ + found.path + " ";
      if (rest.empty()) NEAP_TRY(check_count(value.size(), true, head));
      NEAP_TRY(set_in_list(found, rest, value, origin));
      return check_count(found.items.size(), true, head);
    }
    return {ErrorCode::kInvalidArgument,
            format("{}: unknown key \"{}{}\"{}", origin, prefix_, path, hint(path))};
  }
  Key& key = *it;
  const std::string head = origin + ": " + prefix_ + key.path + " ";
  Json converted = value;
  const Json unset = empty_default(key);
  key.origin = origin;
  if (value == "" && !unset.is_null()) {
    key.is_set = false;
    return key.assign(unset);
  }
  if (key.type == "number" && value.is_number_integer())
    converted = static_cast<double>(value.get<std::int64_t>());
  NEAP_TRY(check_count(value.size(), false, head));
  NEAP_TRY(check_numbers(key, value, head));
  NEAP_TRY(check_choices(key, value, head));
  if (Status status = key.assign(converted); !status.ok()) {
    return {ErrorCode::kInvalidArgument, head + status.message()};
  }
  key.is_set = true;
  return {};
}

}  // namespace neap

// Configuration files, and overrides of their keys: TOML.
#include <toml++/toml.h>
#include <algorithm>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"
#include "base/text.h"
#include "base/utf8.h"

namespace neap {
namespace {

// TOML value -> JSON, keeping integers and floats apart.
Json to_json_value(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* array = node.as_array()) {
    Json out = Json::array();
    for (const auto& item : *array) out.push_back(to_json_value(item));
    return out;
  }
  if (const auto* table = node.as_table()) {
    Json out = Json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = to_json_value(value);
    return out;
  }
  return nullptr;
}

struct Leaf {
  std::string path;
  Json value;
  toml::source_position where;
};

void collect(const toml::table& table, const std::string& prefix, std::vector<Leaf>& out) {
  for (const auto& [key, node] : table) {
    const std::string path =
        prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    const auto where = node.source().begin;
    if (const auto* child = node.as_table()) {
      collect(*child, path, out);
    } else if (const auto* array = node.as_array();
               array != nullptr && array->is_array_of_tables()) {
      out.push_back({path, Json::array(), where});
      for (std::size_t i = 0; i < array->size(); ++i) {
        const std::string item = path + "." + std::to_string(i);
        out.push_back({item, Json::object(), array->get(i)->source().begin});
        collect(*array->get(i)->as_table(), item, out);
      }
    } else {
      out.push_back({path, to_json_value(node), where});
    }
  }
}

}  // namespace

Status ConfigTable::load_file(const std::filesystem::path& path) {
  NEAP_TRY_ASSIGN(const std::string text, read_file(path, 16_MiB));
  return load_text(text, path.string());
}

Status ConfigTable::load_text(std::string_view text, std::string_view name) {
  if (const Status utf16 = check_not_utf16(text, name); !utf16.ok())
    return {ErrorCode::kInvalidArgument, utf16.message()};
  std::vector<Leaf> leaves;
  try {  // toml++ throws; caught here
    collect(toml::parse(text, std::string(name)), "", leaves);
  } catch (const toml::parse_error& e) {
    return {ErrorCode::kInvalidArgument,
            std::string(name) + ":" + std::to_string(e.source().begin.line) + ":" +
                std::to_string(e.source().begin.column) + ": " + std::string(e.description())};
  }
  // A list comes before its tables, which may be on its line.
  std::stable_sort(leaves.begin(), leaves.end(),
                   [](const Leaf& a, const Leaf& b) { return a.where.line < b.where.line; });
  for (const Leaf& leaf : leaves) {
    NEAP_TRY(set(leaf.path, leaf.value, std::string(name) + ":" + std::to_string(leaf.where.line)));
  }
  return {};
}

Status ConfigTable::apply_override(std::string_view assignment) {
  const auto equals = assignment.find('=');
  const std::string origin = "\"" + printable(assignment) + "\" on the command line";
  if (!is_utf8(assignment)) return {ErrorCode::kInvalidArgument, origin + " is not UTF-8"};
  if (equals == std::string_view::npos || equals == 0) {
    return {ErrorCode::kInvalidArgument, origin + " is not of the form key.path=value"};
  }
  const std::string path(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  const Key* key = find(path);
  Json value;
  bool parsed = false;
  if (key == nullptr || (key->type != "text" && key->type != "size")) {
    try {
      const toml::table table = toml::parse("v = " + text);
      value = to_json_value(*table.get("v"));
      parsed = true;
    } catch (const toml::parse_error&) {
      parsed = false;  // a bare word
    }
  }
  if (!parsed) {
    const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
    value = quoted ? text.substr(1, text.size() - 2) : text;
  }
  return set(path, value, origin);
}

}  // namespace neap

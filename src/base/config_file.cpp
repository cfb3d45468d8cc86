// Reads TOML: configuration files and overrides of keys.
#include <toml++/toml.h>
#include <algorithm>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"
#include "base/text.h"
#include "base/utf8.h"

namespace neap {
namespace {

// Converts TOML to JSON and keeps integers and floats distinct.
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
    // Json would look for each key among those before it.
    Json::object_t::Container& members = out.get_ref<Json::object_t&>();
    for (const auto& [key, value] : *table)
      members.emplace_back(std::string(key.str()), to_json_value(value));
    return out;
  }
  return nullptr;
}

// The parser reads and frees tables recursively.
constexpr const ReadLimits& kLimits = read_limits::kConfiguration;

std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view three = quote == '"' ? R"(""")" : "'''";
  const bool many_lines = text.substr(at, 3) == three;
  for (std::size_t i = at + (many_lines ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (many_lines ? text.substr(i, 3) == three : text[i] == quote) {
      return i + (many_lines ? 2 : 0);
    } else if (!many_lines && text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

// Counts the parts of dotted keys and the open brackets of each line of TOML, without parsing it.
Status check_levels(std::string_view toml, std::string_view where) {
  std::vector<std::size_t> open;  // nesting levels before each open bracket
  std::size_t levels = 0;
  for (std::size_t i = 0; i < toml.size(); ++i) {
    const char c = toml[i];
    if (c == '#') {
      i = std::min(toml.find('\n', i), toml.size()) - 1;
    } else if (c == '"' || c == '\'') {
      i = end_of_string(toml, i);
    } else if (c == '\n' || c == ',') {
      levels = open.empty() ? 0 : open.back() + 1;
    } else if (c == '[' || c == '{') {
      open.push_back(levels++);
    } else if ((c == ']' || c == '}') && !open.empty()) {
      levels = open.back();
      open.pop_back();
    } else if (c == '.') {
      ++levels;
    }
    if (levels > static_cast<std::size_t>(kLimits.levels)) {
      const auto line =
          1 + std::count(toml.begin(), toml.begin() + static_cast<std::ptrdiff_t>(i), '\n');
      return over_limit(format("{}:{}", where, line), kLimits, Excess::kLevels);
    }
  }
  return {};
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
  NEAP_TRY_ASSIGN(const std::string text, read_file(path, kLimits));
  return load_text(text, path.string());
}

Status ConfigTable::load_text(std::string_view text, std::string_view name) {
  if (const Status utf16 = check_not_utf16(text, name); !utf16.ok())
    return {ErrorCode::kInvalidArgument, utf16.message()};
  NEAP_TRY(check_levels(text, name));
  std::vector<Leaf> leaves;
  try {  // toml++ throws; exceptions are caught here
    collect(toml::parse(text, std::string(name)), "", leaves);
  } catch (const toml::parse_error& e) {
    return {ErrorCode::kInvalidArgument,
            std::string(name) + ":" + std::to_string(e.source().begin.line) + ":" +
                std::to_string(e.source().begin.column) + ": " + std::string(e.description())};
  }
  // A list must come before its tables, which may be on the same line.
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
    NEAP_TRY(check_levels(text, excerpt(origin, 200)));
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

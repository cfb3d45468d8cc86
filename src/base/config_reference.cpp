// The reference page of a configuration: Markdown tables of its keys.
#include <algorithm>

#include "base/config.h"
#include "base/format.h"

namespace neap {
namespace {

using Key = ConfigTable::Key;
using Column = ConfigTable::Column;

std::string value_text(const Json& value) {
  return value.is_number_float() ? format("{:.6g}", value.get<double>()) : value.dump();
}

std::string table_head(const std::vector<Column>& columns) {
  std::string names = "| key | type | default |", line = "| --- | --- | --- |";
  for (const Column& column : columns) {
    names += " " + column.title + " |";
    line += " --- |";
  }
  return "\n\n" + names + " meaning |\n" + line + " --- |\n";
}

std::string type_text(const Key& key) {
  std::string type = key.type;
  if (!key.choices.empty()) {
    type.clear();
    for (const std::string& choice : key.choices)
      type += (type.empty() ? "`" : ", `") + choice + "`";
    if (key.type == "list of text") type = "list of " + type;
  }
  if (key.minimum) type += format(", ≥ {:.6g}", *key.minimum);
  if (key.maximum) type += format(", ≤ {:.6g}", *key.maximum);
  return key.unit.empty() ? type : format("{} ({})", type, key.unit);
}

std::string default_text(const Key& key) {
  std::string text =
      format("`{}`", key.default_text.empty() ? "\"\"" : std::string_view(key.default_text));
  for (const Key::Default& other : key.other_defaults)
    text += format("; {}: `{}`", other.where, value_text(other.value));
  return text;
}

std::string condition_text(const ConfigCondition& condition) {
  std::string values = condition.words;
  for (const Json& value : condition.values)
    values += format("{}`{}`", values.empty() ? "" : ", ",
                     value.is_string() ? value.get<std::string>() : value.dump());
  if (condition.key.empty()) return values;
  return format("`{}` is {}", condition.key, values);
}

// Those of `conditions` behind the first `known`, as a sentence.
std::string read_where(const std::vector<ConfigCondition>& conditions, std::size_t known) {
  std::string text;
  for (std::size_t i = known; i < conditions.size(); ++i)
    text += format("{}{}", text.empty() ? "Read where " : " and ", condition_text(conditions[i]));
  return text.empty() ? text : text + ".";
}

std::string markdown_row(const Key& key, std::string_view name, const std::vector<Column>& columns,
                         std::size_t known_conditions) {
  std::string row = format("| `{}` | {} | {} |", name, type_text(key), default_text(key));
  for (const Column& column : columns) row += format(" {} |", column.cell(key.path));
  const std::string where = read_where(key.conditions, known_conditions);
  return format("{} {}{}{} |\n", row, key.help, where.empty() ? "" : " ", where);
}

std::string section_of(const Key& key) {
  const auto dot = key.path.rfind('.');
  return dot == std::string::npos ? "" : key.path.substr(0, dot);
}

// Conditions that all keys of [first, last) begin with.
std::size_t shared_conditions(const Key* first, const Key* last) {
  std::size_t shared = first->conditions.size();
  for (const Key* key = first + 1; key < last; ++key) {
    std::size_t same = 0;
    while (same < std::min(shared, key->conditions.size()) &&
           condition_text(key->conditions[same]) == condition_text(first->conditions[same]))
      ++same;
    shared = same;
  }
  return shared;
}

}  // namespace

std::string ConfigTable::to_markdown(const std::vector<Column>& columns) const {
  std::string out;
  // A table of keys with a name in front, and what they are all read by.
  const auto write = [&](const std::string& title, const std::string& intro, const Key* first,
                         const Key* last, std::size_t prefix) {
    const std::size_t shared = shared_conditions(first, last);
    std::string words =
        read_where(std::vector(first->conditions.begin(),
                               first->conditions.begin() + static_cast<std::ptrdiff_t>(shared)),
                   0);
    if (!intro.empty()) words = intro + (words.empty() ? "" : " ") + words;
    out +=
        format("{}## {}{}{}", out.empty() ? "" : "\n", title, words.empty() ? "" : "\n\n", words);
    out += table_head(columns);
    for (const Key* key = first; key < last; ++key)
      out += markdown_row(*key, std::string_view(key->path).substr(prefix), columns, shared);
  };
  const auto write_lists = [&](std::size_t position) {
    for (const List& list : lists_) {
      if (list.position != position) continue;
      const std::vector<Key>& keys = list.reference.front().keys_;
      std::string intro = list.help;
      if (const std::string where = read_where(list.conditions, 0); !where.empty())
        intro += " " + where;
      write("[[" + list.path + "]]", intro, keys.data(), keys.data() + keys.size(), 0);
    }
  };
  for (std::size_t i = 0; i < keys_.size();) {
    write_lists(i);
    const std::string section = section_of(keys_[i]);
    std::size_t end = i + 1;
    const auto list_begins = [&] {
      return std::any_of(lists_.begin(), lists_.end(),
                         [&](const List& list) { return list.position == end; });
    };
    while (end < keys_.size() && section_of(keys_[end]) == section && !list_begins()) ++end;
    write(section.empty() ? "top level" : section, "", keys_.data() + i, keys_.data() + end,
          section.empty() ? 0 : section.size() + 1);
    i = end;
  }
  write_lists(keys_.size());
  return out;
}

}  // namespace neap

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
      type += (type.empty() ? "`" : ", `") + (choice.empty() ? "\"\"" : choice) + "`";
    if (key.type == "list of text") type = "list of " + type;
  }
  if (key.minimum) type += ", ≥ " + bound_text(*key.minimum);
  if (key.maximum) type += ", ≤ " + bound_text(*key.maximum);
  return key.unit.empty() ? type : format("{} ({})", type, key.unit);
}

std::string default_text(const Key& key) {
  std::string text =
      format("`{}`", key.default_text.empty() ? "\"\"" : std::string_view(key.default_text));
  for (const Key::Default& other : key.other_defaults)
    text += format("; {}: `{}`", other.where, value_text(other.value));
  return text;
}

// For a key with fixed choices, names the excluded choices if that is shorter: "`task` is not
// `eval`".
std::string condition_text(const ConfigTable& table, const ConfigCondition& condition) {
  std::vector<Json> values = condition.values;
  std::string verb = "is";
  if (const Key* key = table.find(condition.key);
      key != nullptr && !key->choices.empty() && key->choices.size() < 2 * values.size()) {
    std::vector<Json> others;
    for (const std::string& choice : key->choices)
      if (std::find(values.begin(), values.end(), Json(choice)) == values.end())
        others.emplace_back(choice);
    if (!others.empty()) {
      values = std::move(others);
      verb = "is not";
    }
  }
  std::string names = condition.words;
  for (const Json& value : values)
    names += format("{}`{}`", names.empty() ? "" : ", ",
                    value.is_string() ? value.get<std::string>() : value.dump());
  return condition.key.empty() ? names : format("`{}` {} {}", condition.key, verb, names);
}

// Writes the conditions after the first `known` as a sentence.
std::string read_where(const ConfigTable& table, const std::vector<ConfigCondition>& conditions,
                       std::size_t known) {
  std::string text;
  for (std::size_t i = known; i < conditions.size(); ++i)
    text += (text.empty() ? "Read if " : " and ") + condition_text(table, conditions[i]);
  return text.empty() ? text : text + ".";
}

std::string section_of(const Key& key) {
  const auto dot = key.path.rfind('.');
  return dot == std::string::npos ? "" : key.path.substr(0, dot);
}

// Keys of one section or list.
struct Group {
  std::string title, intro;
  std::size_t prefix = 0;  // bytes of each path that the section's title already shows
  const ConfigTable* table = nullptr;
  std::vector<const Key*> keys;
};

// Counts the leading conditions that all keys share.
std::size_t shared_conditions(const Group& group) {
  const std::vector<ConfigCondition>& first = group.keys.front()->conditions;
  std::size_t shared = first.size();
  for (const Key* key : group.keys) {
    std::size_t same = 0;
    while (same < std::min(shared, key->conditions.size()) &&
           condition_text(*group.table, key->conditions[same]) ==
               condition_text(*group.table, first[same]))
      ++same;
    shared = same;
  }
  return shared;
}

std::string markdown_of(const Group& group, const std::vector<Column>& columns) {
  const std::size_t shared = shared_conditions(group);
  const std::vector<ConfigCondition>& conditions = group.keys.front()->conditions;
  const std::vector<ConfigCondition> of_all(
      conditions.begin(), conditions.begin() + static_cast<std::ptrdiff_t>(shared));
  std::string words = read_where(*group.table, of_all, 0);
  if (!group.intro.empty()) words = group.intro + (words.empty() ? "" : " ") + words;
  std::string out =
      format("## {}{}{}", group.title, words.empty() ? "" : "\n\n", words) + table_head(columns);
  for (const Key* key : group.keys) {
    out += format("| `{}` | {} | {} |", std::string_view(key->path).substr(group.prefix),
                  type_text(*key), default_text(*key));
    for (const Column& column : columns) out += format(" {} |", column.cell(key->path));
    const std::string where = read_where(*group.table, key->conditions, shared);
    out += format(" {}{}{} |\n", key->help, where.empty() ? "" : " ", where);
  }
  return out;
}

}  // namespace

std::string ConfigTable::to_markdown(const std::vector<Column>& columns) const {
  std::vector<Group> groups;
  const auto add_lists = [&](std::size_t position) {
    for (const List& list : lists_) {
      if (list.position != position) continue;
      Group group{"[[" + list.path + "]]", list.help, 0, &list.reference.front(), {}};
      if (const std::string where = read_where(*this, list.conditions, 0); !where.empty())
        group.intro += " " + where;
      for (const Key& key : group.table->keys_) group.keys.push_back(&key);
      groups.push_back(std::move(group));
    }
  };
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    add_lists(i);
    const std::string section = section_of(keys_[i]);
    const std::string title = section.empty() ? "top level" : section;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& other) { return other.title == title; });
    if (group == groups.end())
      group = groups.insert(group, {title, "", section.empty() ? 0 : section.size() + 1, this, {}});
    group->keys.push_back(&keys_[i]);
  }
  add_lists(keys_.size());
  std::string out;
  for (const Group& group : groups) out += (out.empty() ? "" : "\n") + markdown_of(group, columns);
  return out;
}

}  // namespace neap

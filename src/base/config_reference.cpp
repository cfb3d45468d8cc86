// The reference page of a configuration: Markdown lists of its keys.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/config.h"
#include "base/format.h"

namespace neap {
namespace {

using Key = ConfigTable::Key;

std::string value_text(const Json& value) {
  return value.is_number_float() ? format("{:.6g}", value.get<double>()) : value.dump();
}

// Larger limits are left out: messages name them.
constexpr double kMostShown = 1000;
// So many equal keys of an earlier section are named instead of repeated.
constexpr std::size_t kLeastRepeated = 3;
// So many keys of a section with one condition are listed below it.
constexpr std::size_t kLeastWithCondition = 3;

// Counts start at 0 or 1; a key's help says what -1 means.
bool is_usual_minimum(double minimum) {
  return minimum == 0 || minimum == 1 || minimum == -1;
}

std::string type_text(const Key& key) {
  std::string type = key.type;
  if (!key.choices.empty()) {
    type.clear();
    for (const std::string& choice : key.choices)
      type += (type.empty() ? "`" : ", `") + (choice.empty() ? "\"\"" : choice) + "`";
    if (key.type == "list of text") type = "list of " + type;
  }
  if (key.minimum && !is_usual_minimum(*key.minimum)) type += ", ≥ " + bound_text(*key.minimum);
  if (key.maximum && *key.maximum <= kMostShown) type += ", ≤ " + bound_text(*key.maximum);
  return key.unit.empty() ? type : format("{}, in {}", type, key.unit);
}

// "; default `8`; sft: `4`". An empty text or list is not named.
std::string default_text(const Key& key) {
  const std::string& usual = key.default_text;
  const bool is_empty = usual.empty() || usual == "\"\"" || usual == "[]";
  std::string text = is_empty ? "" : format("; default `{}`", usual);
  for (const Key::Default& other : key.other_defaults)
    text += format("; {}: `{}`", other.where, value_text(other.value));
  return text;
}

// For a key with fixed choices, names the excluded choices if that is shorter: "`task` is not
// `eval`". A key of `section` has its last name.
std::string condition_text(const ConfigTable& table, const ConfigCondition& condition,
                           std::string_view section) {
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
  std::string_view key = condition.key;
  if (key.empty()) return names;
  if (!section.empty() && key.starts_with(format("{}.", section)))
    key.remove_prefix(section.size() + 1);
  return format("`{}` {} {}", key, verb, names);
}

std::string joined(const ConfigTable& table, std::span<const ConfigCondition> conditions,
                   std::string_view section) {
  std::string text;
  for (const ConfigCondition& condition : conditions)
    text += (text.empty() ? "" : " and ") + condition_text(table, condition, section);
  return text;
}

// Writes conditions as a sentence.
std::string read_where(const ConfigTable& table, std::span<const ConfigCondition> conditions,
                       std::string_view section = {}) {
  return conditions.empty() ? "" : format("Read if {}.", joined(table, conditions, section));
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
           condition_text(*group.table, key->conditions[same], group.title) ==
               condition_text(*group.table, first[same], group.title))
      ++same;
    shared = same;
  }
  return shared;
}

// The first condition of most keys, if they are at least half of the section; else "".
std::string usual_condition(const Group& group) {
  std::map<std::string, std::size_t> counts;
  for (const Key* key : group.keys)
    if (!key->conditions.empty())
      ++counts[condition_text(*group.table, key->conditions.front(), group.title)];
  const auto most = std::max_element(
      counts.begin(), counts.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  return most != counts.end() && most->second > 2 && 2 * most->second >= group.keys.size()
             ? most->first
             : "";
}

// The key's conditions, for its row: `shared` of them, or `usual`, stand above the table.
std::string own_conditions(const Group& group, const Key& key, std::size_t shared,
                           const std::string& usual) {
  const std::span<const ConfigCondition> all(key.conditions);
  if (usual.empty()) return read_where(*group.table, all.subspan(shared), group.title);
  if (all.empty()) return "Always read.";
  if (condition_text(*group.table, all.front(), group.title) != usual)
    return read_where(*group.table, all, group.title);
  return all.size() == 1 ? ""
                         : format("Only if {}.", joined(*group.table, all.subspan(1), group.title));
}

std::string entry_of(const Group& group, const Key& key) {
  return format("- **`{}`** ({}{}): {}", std::string_view(key.path).substr(group.prefix),
                type_text(key), default_text(key), key.help);
}

// Rows of earlier sections, to name them instead of repeating them.
using Written = std::map<std::string, std::string>;  // start of a row, title of its section

// The keys that one earlier section has with the same row, and that section's title.
std::pair<std::string, std::set<const Key*>> repeated_keys(const Group& group,
                                                           const Written& written) {
  std::map<std::string, std::set<const Key*>> found;
  for (const Key* key : group.keys)
    if (const auto row = written.find(entry_of(group, *key)); row != written.end())
      found[row->second].insert(key);
  for (auto& [title, keys] : found)
    if (keys.size() >= kLeastRepeated) return {title, std::move(keys)};
  return {};
}

// Keys of a section that are listed below one condition.
struct Part {
  std::string condition;                                 // "Read if `kind` is `http`:" or ""
  std::vector<std::pair<const Key*, std::string>> keys;  // with conditions of their own
};

// First the keys whose conditions few others have, then those of each frequent condition.
std::vector<Part> parts_of(const Group& group, std::size_t shared, const std::string& usual) {
  std::vector<std::pair<const Key*, std::string>> all;
  std::map<std::string, std::size_t> counts;
  for (const Key* key : group.keys) {
    all.emplace_back(key, own_conditions(group, *key, shared, usual));
    ++counts[all.back().second];
  }
  std::vector<Part> parts(1);
  for (const auto& [key, where] : all) {
    if (where.empty() || counts[where] < kLeastWithCondition) {
      parts.front().keys.emplace_back(key, where);
      continue;
    }
    const std::string condition = where.substr(0, where.size() - 1) + ":";
    auto part = std::find_if(parts.begin(), parts.end(),
                             [&](const Part& other) { return other.condition == condition; });
    if (part == parts.end()) part = parts.insert(part, Part{condition, {}});
    part->keys.emplace_back(key, "");
  }
  if (parts.front().keys.empty()) parts.erase(parts.begin());
  return parts;
}

std::string markdown_of(Group group, Written& written) {
  const auto [title, repeated] = repeated_keys(group, written);
  std::string names;
  for (const Key* key : group.keys)
    if (repeated.contains(key))
      names += format("{}`{}`", names.empty() ? "" : ", ",
                      std::string_view(key->path).substr(group.prefix));
  const std::string as_there = names.empty() ? "" : format("\n\n{} are as in `{}`.", names, title);
  if (repeated.size() < group.keys.size())
    std::erase_if(group.keys, [&keys = repeated](const Key* key) { return keys.contains(key); });

  const std::size_t shared = shared_conditions(group);
  const std::string usual = shared == 0 ? usual_condition(group) : "";
  std::string words = read_where(
      *group.table, std::span(group.keys.front()->conditions).subspan(0, shared), group.title);
  if (!usual.empty()) words = format("Read if {}, unless an entry says otherwise.", usual);
  if (!group.intro.empty()) words = group.intro + (words.empty() ? "" : " ") + words;
  std::string out =
      format("## {}{}{}{}", group.title, words.empty() ? "" : "\n\n", words, as_there);
  if (repeated.contains(group.keys.front())) return out + "\n";
  for (const Part& part : parts_of(group, shared, usual)) {
    out += "\n\n";
    if (!part.condition.empty()) out += part.condition + "\n\n";
    for (const auto& [key, where] : part.keys) {
      const std::string row = entry_of(group, *key);
      written.emplace(row, group.title);
      out += format("{}{}{}\n", row, where.empty() ? "" : " ", where);
    }
    out.pop_back();
  }
  return out + "\n";
}

}  // namespace

std::string ConfigTable::to_markdown() const {
  std::vector<Group> groups;
  const auto add_lists = [&](std::size_t position) {
    for (const List& list : lists_) {
      if (list.position != position) continue;
      Group group{"[[" + list.path + "]]", list.help, 0, &list.reference.front(), {}};
      if (const std::string where = read_where(*this, list.conditions); !where.empty())
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
  Written written;
  for (const Group& group : groups) out += (out.empty() ? "" : "\n") + markdown_of(group, written);
  return out;
}

}  // namespace neap

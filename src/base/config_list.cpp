// Lists of tables in a configuration: `[[path]]`.
#include <algorithm>
#include <charconv>

#include "base/config.h"
#include "base/format.h"

namespace neap {
namespace {

// Flattens keys of a table and its nested tables to "inner.key".
void flatten(const Json& table, const std::string& prefix,
             std::vector<std::pair<std::string, Json>>& out) {
  for (const auto& [key, value] : table.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + ".", out);
    } else {
      out.emplace_back(prefix + key, value);
    }
  }
}

Status wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace

void ConfigTable::add_list(List list) {
  list.position = keys_.size();
  list.conditions = sections_;
  for (std::size_t i = 0; i < list.items.size(); ++i)
    list.items[i].prefix_ = format("{}.{}.", list.path, i);
  lists_.push_back(std::move(list));
}

const ConfigTable::List* ConfigTable::list_of(std::string_view path, std::string_view* rest) const {
  for (const List& list : lists_) {
    if (!path.starts_with(list.path)) continue;
    *rest = path.substr(list.path.size());
    if (rest->empty()) return &list;
    if (rest->front() != '.') continue;
    rest->remove_prefix(1);
    return &list;
  }
  return nullptr;
}

Status ConfigTable::set_in_list(List& list, std::string_view rest, const Json& value,
                                const std::string& origin) {
  const std::string head = origin + ": " + list.path;
  if (rest.empty()) {
    const auto is_table = [](const Json& v) { return v.is_object(); };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_table))
      return wrong(format("{} takes a list of tables, written as [[{}]]", head, list.path));
    list.clear();
    list.items.clear();
    for (std::size_t i = 0; i < value.size(); ++i)
      NEAP_TRY(set_in_list(list, std::to_string(i), value[i], origin));
    return {};
  }
  const std::string_view number = rest.substr(0, rest.find('.'));
  std::size_t index = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), index);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size() ||
      index > list.items.size()) {
    return wrong(format(
        "{}.{} is not there: {} is a list of {} tables, written as [[{}]]; on the command "
        "line {}.{}.key=value adds one",
        head, number, list.path, list.items.size(), list.path, list.path, list.items.size()));
  }
  if (index == list.items.size()) {
    list.items.push_back(list.append());
    list.items.back().prefix_ = format("{}.{}.", list.path, index);
  }
  ConfigTable& item = list.items[index];
  if (number.size() < rest.size()) return item.set(rest.substr(number.size() + 1), value, origin);
  if (!value.is_object()) return wrong(format("{}.{} takes a table", head, number));
  std::vector<std::pair<std::string, Json>> keys;
  flatten(value, "", keys);
  for (const auto& [key, each] : keys) NEAP_TRY(item.set(key, each, origin));
  return {};
}

}  // namespace neap

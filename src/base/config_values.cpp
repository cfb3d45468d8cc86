// The values of all keys, and the differences between those of two tables.
#include "base/config.h"
#include "base/format.h"

namespace neap {

std::vector<std::pair<std::string, Json>> ConfigTable::values() const {
  std::vector<std::pair<std::string, Json>> out;
  out.reserve(keys_.size() + lists_.size());
  for (const Key& key : keys_) out.emplace_back(key.path, key.read());
  for (const List& list : lists_) {
    Json& items = out.emplace_back(list.path, Json::array()).second;
    for (const ConfigTable& item : list.items) items.push_back(item.to_json());
  }
  return out;
}

Json ConfigTable::to_json() const {
  Json out = Json::object();
  const auto place = [&out](std::string_view path) -> Json& {
    Json* at = &out;
    for (auto dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
      at = &(*at)[std::string(path.substr(0, dot))];
      path.remove_prefix(dot + 1);
    }
    return (*at)[std::string(path)];
  };
  for (auto& [path, value] : values()) place(path) = std::move(value);
  return out;
}

namespace {

void add_differences(const Json& before, const Json& now, const std::string& path,
                     std::vector<std::string>& out) {
  if (before.is_object() && now.is_object()) {
    for (const auto& [key, value] : now.items()) {
      std::string inner = path;
      if (!inner.empty()) inner += ".";
      inner += key;
      if (before.contains(key)) add_differences(before[key], value, inner, out);
    }
  } else if (before.is_array() && now.is_array() && before.size() == now.size() && !now.empty() &&
             now[0].is_object()) {
    for (std::size_t i = 0; i < now.size(); ++i)
      add_differences(before[i], now[i], path + "." + std::to_string(i), out);
  } else if (before != now) {
    out.push_back(format("{}: was {}, is {}", path, before.dump(), now.dump()));
  }
}

}  // namespace

std::vector<std::string> config_differences(const Json& before, const Json& now) {
  std::vector<std::string> out;
  add_differences(before, now, "", out);
  return out;
}

}  // namespace neap

// Finds keys by path or field, and suggests keys for an unknown path.
#include <algorithm>
#include <charconv>

#include "base/config.h"
#include "base/format.h"
#include "base/text.h"

namespace neap {
namespace {

std::string_view leaf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

}  // namespace

const ConfigTable::Key* ConfigTable::find_bound(const void* field) const {
  const auto it =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.field == field; });
  return it == keys_.end() ? nullptr : &*it;
}

const ConfigTable::Key* ConfigTable::find(std::string_view path) const {
  const auto it =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.path == path; });
  if (it != keys_.end()) return &*it;
  std::string_view rest;
  const List* list = list_of(path, &rest);
  const auto dot = rest.find('.');
  if (list == nullptr || dot == std::string_view::npos) return nullptr;
  std::size_t index = 0;
  std::from_chars(rest.data(), rest.data() + dot, index);
  const ConfigTable& item =
      index < list->items.size() ? list->items[index] : list->reference.front();
  return item.find(rest.substr(dot + 1));
}

std::string ConfigTable::hint(std::string_view path) const {
  // Hydra marks additions and removals on a command line with + and ~.
  path.remove_prefix(std::min(path.find_first_not_of("+~"), path.size()));
  const std::string near = nearest(path);
  const bool in_other_section = !near.empty() && leaf(near) == leaf(path);
  for (const bool exact : {true, false}) {
    if (!explain_ || (!exact && in_other_section)) continue;
    if (const std::string told = explain_(path, exact); !told.empty()) return ". " + told;
  }
  return near.empty() ? "; docs/configuration.md lists the keys"
                      : format("; did you mean \"{}{}\"?", prefix_, near);
}

std::string ConfigTable::nearest(std::string_view path) const {
  std::string best;
  std::size_t best_distance = 1000;
  const auto consider = [&](const std::string& known) {
    // Most typos put a valid key in the wrong section.
    const std::size_t distance =
        std::min(edit_distance(path, known), edit_distance(leaf(path), leaf(known)) + 2);
    if (distance < best_distance) {
      best_distance = distance;
      best = known;
    }
  };
  for (const Key& key : keys_) consider(key.path);
  for (const List& list : lists_) consider(list.path);
  return best_distance <= std::max<std::size_t>(4, path.size() / 3) ? best : "";
}

}  // namespace neap

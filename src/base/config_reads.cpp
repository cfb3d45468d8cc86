// Conditions for reading keys, defaults that depend on other keys, and keys that are set but not
// read.
#include <algorithm>

#include "base/config.h"
#include "base/format.h"

namespace neap {
namespace {

std::string listed(const std::vector<std::string>& words, std::string_view last) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? format(" {} ", last) : ", ";
    out += words[i];
  }
  return out;
}

}  // namespace

/// Unread keys that share one reason.
struct ConfigTable::Reason {
  std::vector<std::string> keys;
  std::string text, wish_of_one, wish_of_many;
};

ConfigTable::Key& ConfigTable::at(std::string_view path) {
  return *std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.path == path; });
}

bool ConfigTable::holds(const ConfigCondition& condition) const {
  if (condition.holds) return condition.holds();
  const Json value = find(condition.key)->read();
  return std::find(condition.values.begin(), condition.values.end(), value) !=
         condition.values.end();
}

// For example: task is "grpo"
std::string ConfigTable::reason(const ConfigCondition& condition) const {
  std::string text;
  if (!condition.key.empty())
    text = format("{}{} is {}", prefix_, condition.key, find(condition.key)->read().dump());
  if (!condition.otherwise.empty())
    text = text.empty() ? condition.otherwise : format("{} ({})", text, condition.otherwise);
  return text;
}

// For example: It is read if task is "ppo"
std::string ConfigTable::wish(const ConfigCondition& condition, bool many) const {
  std::vector<std::string> values;
  for (const Json& value : condition.values) values.push_back(value.dump());
  const std::string wanted = condition.words.empty() ? listed(values, "or") : condition.words;
  const std::string_view subject = many ? "They are" : "It is";
  return condition.key.empty()
             ? format("{} read if {}", subject, wanted)
             : format("{} read if {}{} is {}", subject, prefix_, condition.key, wanted);
}

Status ConfigTable::note_unread(const std::string& name, const std::string& origin,
                                const std::vector<ConfigCondition>& conditions,
                                std::vector<Reason>& reasons) const {
  const auto failed = std::find_if(conditions.begin(), conditions.end(),
                                   [&](const ConfigCondition& c) { return !holds(c); });
  if (failed == conditions.end()) return {};
  const std::string text = reason(*failed);
  const bool switched_off = !failed->key.empty() && !find(failed->key)->origin.empty();
  if (failed->unread == Unread::kMistake ||
      (failed->unread == Unread::kForgotten && !switched_off)) {
    return {ErrorCode::kInvalidArgument,
            format("{}: {} is set, but {}. {}: change that, or leave {} out", origin, name, text,
                   wish(*failed, false), name)};
  }
  const std::string wish_of_many = wish(*failed, true);
  auto same = std::find_if(reasons.begin(), reasons.end(), [&](const Reason& each) {
    return each.text == text && each.wish_of_many == wish_of_many;
  });
  if (same == reasons.end())
    same = reasons.insert(reasons.end(), {{}, text, wish(*failed, false), wish_of_many});
  // An origin on the command line already contains the name.
  same->keys.push_back(origin.starts_with('"') ? origin : format("{} ({})", name, origin));
  return {};
}

Status ConfigTable::find_unread(const std::function<bool(const std::string&)>& harmless,
                                std::vector<Reason>& reasons) const {
  for (const Key& key : keys_) {
    if (!key.is_set || (harmless && harmless(key.origin))) continue;
    NEAP_TRY(note_unread(prefix_ + key.path, key.origin, key.conditions, reasons));
  }
  for (const List& list : lists_) {
    if (list.items.empty()) continue;
    // The first key's origin stands for the whole list.
    std::string origin;
    for (const Key& key : list.items.front().keys_)
      if (origin.empty()) origin = key.origin;
    if (harmless && harmless(origin)) continue;
    const std::size_t before = reasons.size();
    NEAP_TRY(note_unread("[[" + list.path + "]]", origin, list.conditions, reasons));
    if (reasons.size() > before) continue;
    for (const ConfigTable& item : list.items) NEAP_TRY(item.find_unread(harmless, reasons));
  }
  return {};
}

Result<std::vector<std::string>> ConfigTable::unread(
    const std::function<bool(const std::string& origin)>& harmless) const {
  std::vector<Reason> reasons;
  NEAP_TRY(find_unread(harmless, reasons));
  std::vector<std::string> out;
  for (const Reason& each : reasons) {
    const bool many = each.keys.size() > 1;
    out.push_back(format("{} {} no effect{}{}. {}", listed(each.keys, "and"), many ? "have" : "has",
                         each.text.empty() ? "" : ": ", each.text,
                         many ? each.wish_of_many : each.wish_of_one));
  }
  return out;
}

Status ConfigTable::apply_defaults() {
  // A default may depend on another default, so repeat until nothing changes.
  for (std::size_t round = 0; round < keys_.size(); ++round) {
    bool changed = false;
    for (const Key& key : keys_) {
      if (key.is_set) continue;
      const auto fits = std::find_if(key.other_defaults.begin(), key.other_defaults.end(),
                                     [](const Key::Default& each) { return each.holds(); });
      if (fits == key.other_defaults.end() || key.read() == fits->value) continue;
      NEAP_TRY(key.assign(fits->value));
      changed = true;
    }
    if (!changed) break;
  }
  return {};
}

}  // namespace neap

#include "spec/keys/peer_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "spec/keys/peer_tables.h"

namespace neap::spec {

std::string_view to_string(Peer peer) {
  return peer == Peer::kVerl ? "verl" : "TRL";
}

namespace {

std::string_view leaf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

bool covers(std::string_view pattern, std::string_view path) {
  return pattern.ends_with(".*") ? path.starts_with(pattern.substr(0, pattern.size() - 1))
                                 : pattern == path;
}

// Whether the end of one path matches the other: "fsdp_config.param_offload" matches
// "actor_rollout_ref.actor.fsdp_config.param_offload". "fsdp_config" matches the keys below it.
bool ends_alike(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with(".*"))
    return pattern.ends_with(std::string(".").append(path)) || leaf(pattern) == leaf(path);
  const std::string_view section = leaf(pattern.substr(0, pattern.size() - 2));
  const std::string inside = format(".{}.", section);
  return format(".{}.", path).find(inside) != std::string::npos;
}

struct Found {
  Peer peer{};
  const PeerKey* key = nullptr;
};

// An entry of a key takes precedence over an entry of its section.
Found find_key(std::string_view path, bool exact) {
  Found found;
  for (const Peer peer : kAllPeers) {
    for (const PeerKey& key : peer_keys(peer)) {
      if (!(exact ? covers(key.key, path) : ends_alike(key.key, path))) continue;
      found = {peer, &key};
      if (!key.key.ends_with(".*")) return found;
    }
  }
  return found;
}

std::string sentence_of(Peer peer, const PeerKey& key) {
  std::string text = format("{}'s {}", to_string(peer), key.key);
  if (key.here.empty()) return format("{} has no counterpart here: {}", text, key.note);
  text += key.here == key.key ? format(" is the same here") : format(" is {} here", key.here);
  if (!key.note.empty()) text += format(": {}", key.note);
  if (peer != Peer::kTrl || key.value.empty()) return text;
  return text + ". `algorithm.preset = \"trl\"` takes TRL's defaults of keys that are not set";
}

// The list that shows a key, by its equivalent here.
enum class Use : std::uint8_t { kSame, kOther, kNone };

Use use_of(const PeerKey& key) {
  return key.here.empty() ? Use::kNone : key.here == key.key ? Use::kSame : Use::kOther;
}

std::string_view head_of(Use use) {
  switch (use) {
    case Use::kSame:
      return "\nThe same here, with verl's default in parentheses:\n\n";
    case Use::kOther:
      return "\nReplaced, as key (default): key here; note:\n\n";
    case Use::kNone:
      return "\nWithout a counterpart; leave these out:\n\n";
  }
  return {};
}

// A note without the advice that the list's heading gives.
std::string_view reason_of(std::string_view note) {
  constexpr std::string_view kAdvice = "leave it out", kAfter = "; leave it out";
  if (note == kAdvice) return "not needed";
  if (note.ends_with(kAfter)) note.remove_suffix(kAfter.size());
  return note;
}

// A row of a list, and the keys that share it.
struct Row {
  const PeerKey* first = nullptr;
  std::vector<std::string> keys, here;
};

// "data", "critic", or of actor_rollout_ref the first two words.
std::string_view section_of(std::string_view path) {
  const std::size_t first = path.find('.');
  const bool deeper = path.starts_with("actor_rollout_ref.");
  return path.substr(0, deeper ? path.find('.', first + 1) : first);
}

bool shares(const Row& row, const PeerKey& key, Use use) {
  if (use == Use::kSame) return section_of(row.first->key) == section_of(key.key);
  if (row.first->note != key.note) return false;
  if (use == Use::kNone) return true;
  return key.note.empty() ? row.first->here == key.here : leaf(row.first->here) == leaf(key.here);
}

// "`key` (default)", with a note on a key that is the same here.
std::string with_default(const PeerKey& key, Use use) {
  if (use == Use::kNone || key.value.empty()) return format("`{}`", key.key);
  const bool noted = use == Use::kSame && !key.note.empty();
  return format("`{}` ({}{}{})", key.key, key.value, noted ? "; here: " : "",
                noted ? key.note : "");
}

std::string list_of(Peer peer, Use use) {
  std::vector<Row> rows;
  for (const PeerKey& key : peer_keys(peer)) {
    if (use_of(key) != use) continue;
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& other) { return shares(other, key, use); });
    if (row == rows.end()) row = rows.insert(row, Row{&key, {}, {}});
    row->keys.push_back(with_default(key, use));
    const std::string here = format("`{}`", key.here);
    if (std::find(row->here.begin(), row->here.end(), here) == row->here.end())
      row->here.push_back(here);
  }
  std::string out = rows.empty() ? "" : std::string(head_of(use));
  for (const Row& row : rows) {
    const std::string keys = joined(row.keys, ", ");
    const std::string_view note = row.first->note;
    if (use == Use::kSame) out += format("- {}\n", keys);
    if (use == Use::kOther)
      out += format("- {}: {}{}{}\n", keys, joined(row.here, ", "), note.empty() ? "" : "; ", note);
    if (use == Use::kNone) out += format("- {}: {}\n", keys, reason_of(note));
  }
  return out;
}

}  // namespace

std::span<const PeerKey> peer_keys(Peer peer) {
  return peer == Peer::kVerl ? verl_keys() : trl_keys();
}

std::string explain_peer_key(std::string_view path, bool exact) {
  const auto [peer, key] = find_key(path, exact);
  return key == nullptr ? "" : sentence_of(peer, *key);
}

std::string peer_reference() {
  std::string out = format(
      "# Keys of verl and TRL\n\n"
      "<!-- Written by `neap plan --peer-keys`; a test compares. Change "
      "src/spec/keys/verl_keys.cpp or src/spec/keys/trl_keys.cpp instead. -->\n\n"
      "Search this page for a key of verl ({}) or TRL ({}). Neap refuses a job with a key that is "
      "not the same, and prints what this page says.\n\n"
      "Defaults are those of verl or TRL. Neap's differ; `algorithm.preset = \"verl\"` or "
      "`\"trl\"` takes [theirs](configuration/presets.md), except batch sizes, lengths and "
      "responses per prompt. [Some differences](algorithms.md#presets) remain.\n",
      kVerlVersion, kTrlVersion);
  for (const Peer peer : kAllPeers) {
    out += format("\n## {}\n", to_string(peer));
    for (const Use use : {Use::kSame, Use::kOther, Use::kNone}) out += list_of(peer, use);
  }
  return out;
}

}  // namespace neap::spec

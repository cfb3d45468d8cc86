#include "spec/keys/peer_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
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
      "Keys of verl ({}) and TRL ({}), their defaults, and what to use instead. A job that uses a "
      "key that is not the same here is refused with the words of this page.\n\n"
      "Keys that a job does not set have Neap's defaults, which differ. `algorithm.preset = "
      "\"verl\"` or `\"trl\"` takes [theirs](configuration/presets.md), except batch sizes, "
      "lengths "
      "and responses per prompt; [some differences](algorithms.md#presets) remain.\n",
      kVerlVersion, kTrlVersion);
  for (const Peer peer : kAllPeers) {
    out += format("\n## {}\n\n| key | default | here | note |\n| --- | --- | --- | --- |\n",
                  to_string(peer));
    // Keys that have everything else in common share a row.
    std::vector<std::pair<std::string, std::string>> rows;
    for (const PeerKey& key : peer_keys(peer)) {
      const std::string here = key.here.empty()      ? "-"
                               : key.here == key.key ? "the same"
                                                     : format("`{}`", key.here);
      std::string rest =
          format(" | {} | {} | {} |\n", key.value.empty() ? "-" : key.value, here, key.note);
      const auto row = std::find_if(rows.begin(), rows.end(),
                                    [&](const auto& other) { return other.second == rest; });
      if (row == rows.end())
        rows.emplace_back(format("`{}`", key.key), std::move(rest));
      else
        row->first += format(", `{}`", key.key);
    }
    for (const auto& [keys, rest] : rows) out.append("| ").append(keys).append(rest);
  }
  return out;
}

}  // namespace neap::spec

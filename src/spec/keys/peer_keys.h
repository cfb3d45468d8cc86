// Configuration keys of verl and TRL, with their defaults and Neap's equivalents.
//
// Threads   values and stateless functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace neap::spec {

enum class Peer : std::uint8_t { kVerl, kTrl };
inline constexpr std::array kAllPeers = {Peer::kVerl, Peer::kTrl};
[[nodiscard]] std::string_view to_string(Peer peer);

struct PeerKey {
  /// A trailing ".*" means all keys below.
  std::string_view key;
  std::string_view value;  ///< its default there, with trainers' names if they differ; may be ""
  std::string_view here;   ///< Neap's equivalent key; empty: none
  /// The difference, or a replacement if the key does not exist here. Empty: both keys are the same
  /// setting.
  std::string_view note;
};
/// The commits whose keys and defaults these, the presets and the docs have.
inline constexpr std::string_view kVerlVersion = "b178a3c, January 2026";
inline constexpr std::string_view kTrlVersion = "f2cd577, July 2026";
[[nodiscard]] std::span<const PeerKey> peer_keys(Peer peer);

/// The replacement for verl's or TRL's key; empty if the key is not known. With `exact` the whole
/// path must match; otherwise its end or its last component may match.
[[nodiscard]] std::string explain_peer_key(std::string_view path, bool exact);
/// The page docs/verl-trl-keys.md.
[[nodiscard]] std::string peer_reference();

}  // namespace neap::spec

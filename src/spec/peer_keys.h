// Configuration keys of verl and TRL, with their defaults and what does the same here.
//
// Threads   values and functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace neap::spec {

enum class Peer : std::uint8_t { kVerl, kTrl };
inline constexpr std::array kPeers = {Peer::kVerl, Peer::kTrl};
[[nodiscard]] std::string_view to_string(Peer peer);

struct PeerKey {
  /// With ".*" at the end: all keys below it.
  std::string_view key;
  std::string_view value;  ///< its default there; several with the trainers they are of; may be ""
  std::string_view here;   ///< the key that does the same; empty: there is none
  /// The difference, or what to do without a key here. Empty: both are the same setting.
  std::string_view note;
};
/// The commits whose keys and defaults these, the presets and the docs have.
inline constexpr std::string_view kVerlVersion = "b178a3c, January 2026";
inline constexpr std::string_view kTrlVersion = "f2cd577, July 2026";
[[nodiscard]] std::span<const PeerKey> peer_keys(Peer peer);

/// What to write instead of a peer's key; empty: no such key is known. `exact`: the whole path is a
/// peer's; otherwise its end or its last word may be.
[[nodiscard]] std::string explain_peer_key(std::string_view path, bool exact);
/// The page docs/verl-trl-keys.md.
[[nodiscard]] std::string peer_reference();

}  // namespace neap::spec

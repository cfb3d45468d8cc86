// The tables of peer_keys(), and notes that both share.
//
// Threads   constants.
#pragma once

#include <span>
#include <string_view>

#include "spec/keys/peer_keys.h"

namespace neap::spec {

[[nodiscard]] std::span<const PeerKey> verl_keys();
[[nodiscard]] std::span<const PeerKey> trl_keys();

inline constexpr std::string_view kMoved =
    "the plan decides what leaves the GPU between phases (memory.offload, memory.allow); leave "
    "it out";
inline constexpr std::string_view kEngine =
    "generation is built in; rollout.batch_size and the plan size its KV cache; leave it out";
inline constexpr std::string_view kChunked =
    "the LM head is always computed in chunks; leave it out";
inline constexpr std::string_view kFunctions = "a [[reward.functions]] each (docs/rewards.md)";

}  // namespace neap::spec

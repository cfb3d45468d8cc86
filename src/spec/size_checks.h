// Bounds of a job's sizes.
//
// A key's own bound is in its table (Job::bind()). Here are bounds that several keys share, and products of
// keys. Within them no number of a plan overflows, and a plan takes bounded time and memory.
//
// Threads   functions without state.
// Failure   kInvalidArgument with the keys, their values and the bound.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "spec/job.h"

namespace neap::spec {

// Of keys:
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 24;       ///< of a step, all ranks
inline constexpr std::int64_t kMostResponses = std::int64_t{1} << 16;  ///< to a prompt
inline constexpr std::int64_t kMostLength = std::int64_t{1} << 26;  ///< of a prompt or a response
/// Tokens of a micro-batch on a rank.
inline constexpr std::int64_t kMostMicroTokens = std::int64_t{1} << 22;
inline constexpr std::int64_t kMostEpochs = 256;  ///< over a step's sequences

// Of products:
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 16;
/// Of a step, that one rank scores, trains or generates.
inline constexpr std::int64_t kMostSequences = std::int64_t{1} << 18;
/// In the KV cache of a rank.
inline constexpr std::int64_t kMostCachedTokens = std::int64_t{1} << 30;
/// Forwards of all stages of a pipeline in a mini-batch, of each chunk.
inline constexpr std::int64_t kMostStageSteps = std::int64_t{1} << 21;
/// Parts in which one prompt is prefilled.
inline constexpr std::int64_t kMostChunks = std::int64_t{1} << 16;

/// Of sizes that are within the bounds of their own keys. Before any other product of them.
[[nodiscard]] Status check_sizes(const Job& job);

}  // namespace neap::spec

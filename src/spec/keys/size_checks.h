// Bounds of a job's sizes.
//
// The bound of a single key is in its table (Job::bind()). Here are bounds that several keys share,
// and bounds of products of keys. Within them a plan's numbers cannot overflow, and planning takes
// bounded time and memory.
//
// Threads   stateless functions.
// Failure   kInvalidArgument with the keys, their values and the bound.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "spec/job/job.h"

namespace neap::spec {

// Bounds of keys:
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 24;       ///< per step, over all ranks
inline constexpr std::int64_t kMostResponses = std::int64_t{1} << 16;  ///< per prompt
inline constexpr std::int64_t kMostLength = std::int64_t{1} << 26;     ///< per prompt or response
/// Tokens per micro-batch on a rank.
inline constexpr std::int64_t kMostMicroTokens = std::int64_t{1} << 22;
inline constexpr std::int64_t kMostEpochs = 256;  ///< epochs over a step's sequences

// Bounds of products:
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 16;
/// Sequences of a step that one rank scores, trains or generates.
inline constexpr std::int64_t kMostSequences = std::int64_t{1} << 18;
/// Tokens in the KV cache of a rank.
inline constexpr std::int64_t kMostCachedTokens = std::int64_t{1} << 30;
/// Forwards of one mini-batch over all stages and chunks of a pipeline.
inline constexpr std::int64_t kMostStageSteps = std::int64_t{1} << 21;
/// Parts in which one prompt is prefilled.
inline constexpr std::int64_t kMostChunks = std::int64_t{1} << 16;

/// Checks products of sizes that are within their own bounds. Call it before computing any other
/// product of them.
[[nodiscard]] Status check_sizes(const Job& job);

}  // namespace neap::spec

// Settings that need Neap's kernels: fp8 products (device.linear_dtype) and a paged KV cache
// (rollout.max_total_tokens).
//
// Threads   stateless functions.
// Failure   kUnsupported or kInvalidArgument, with the reason.
#pragma once

#include <string_view>

#include "plan/results/model_roles.h"

namespace neap::plan {

/// Fails if the job asks for products of fp8 that its type, its device or the widths of all matrices
/// rule out.
[[nodiscard]] Status check_linear_dtype(const spec::Job& job, const Target& target,
                                        const JobModels& models);
/// Why the job's KV cache cannot have pages; empty: it can.
[[nodiscard]] std::string_view no_pages_reason(const spec::Job& job, const Target& target,
                                               const JobModels& models);
/// Fails if the job asks for pages that the device's kernels cannot read.
[[nodiscard]] Status check_pages(const spec::Job& job, const Target& target,
                                 const JobModels& models);

}  // namespace neap::plan

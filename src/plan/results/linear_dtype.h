// Whether the products of a job's layers are in fp8 (device.linear_dtype).
//
// Threads   stateless functions.
// Failure   kUnsupported with the reason why a job cannot have them.
#pragma once

#include "plan/results/model_roles.h"

namespace neap::plan {

/// Fails if the job asks for products of fp8 that its type, its device or a model's widths rule out.
[[nodiscard]] Status check_linear_dtype(const spec::Job& job, const Target& target,
                                        const JobModels& models);

}  // namespace neap::plan

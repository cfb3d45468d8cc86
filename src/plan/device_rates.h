// What a device reaches, for plans that count seconds.
#pragma once

#include "step/counting_ops.h"

namespace neap::plan {

/// Of a GPU: an H200's, measured (a product of 4096^3 in bfloat16, traffic of a copy). Of the host
/// device: a core of a current server for each thread.
[[nodiscard]] step::KernelRates default_rates(bool cuda, std::int64_t threads);

}  // namespace neap::plan

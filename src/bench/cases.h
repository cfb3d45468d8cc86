// The cases, one function each. Internal to bench/.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace neap::bench {

/// Tags of the cases that need only one.
inline const std::vector<std::string> kTag = {"tag"};

Status run_host_memory(Bench& bench);
Status run_lookup(Bench& bench);
Status run_region(Bench& bench);
Status run_hook(Bench& bench);
Status run_discard(Bench& bench);
Status run_released(Bench& bench);
Status run_many(Bench& bench);
Status run_hand_over(Bench& bench);
Status run_backup(Bench& bench);
Status run_exchange(Bench& bench);
Status run_disk(Bench& bench);
Status run_cache(Bench& bench);
Status run_replay(Bench& bench);

}  // namespace neap::bench

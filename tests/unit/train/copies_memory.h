// Host memory for copies of checkpoints, without a job.
#pragma once

#include <memory>

#include "arena/arena.h"
#include "base/status.h"
#include "device/host/host_device.h"
#include "train/host_copies.h"

namespace neap::testing {

struct CopiesMemory {
  explicit CopiesMemory(Bytes budget = 1_GiB) {
    arena::Options options;
    options.host_budget = budget;
    arena = value_or_throw(arena::Arena::make(*device, options));
    copies = std::make_unique<train::HostCopies>(*arena);
  }
  std::unique_ptr<device::HostDevice> device = value_or_throw(device::make_host_device({}));
  std::unique_ptr<arena::Arena> arena;
  std::unique_ptr<train::HostCopies> copies;
};

}  // namespace neap::testing

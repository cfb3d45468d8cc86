// GPUs that plans can be made for where there is none: what their vendor states, and what of it kernels reach.
//
// The shares that kernels reach were measured once, on an H200, and NCCL's on two H100s; they are the same for every GPU.
//
// Threads   functions without state.   Failure   kInvalidArgument, with the names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/device_choice.h"

namespace neap::plan {

[[nodiscard]] std::vector<std::string> gpu_names();

/// A process takes this much of a card before it allocates: CUDA's context and kernels that libraries load. Measured on
/// H100 and H200 with libtorch: 0.7 to 0.8 GiB. nvidia-smi shows it, a plan does not count it.
constexpr Bytes kCudaContext = 800_MiB;

struct Card {
  std::string_view title;
  Bytes memory;  ///< as it is sold
  Bytes free;    ///< where nothing runs: what CUDA reports
  bool bfloat16 = true;
};
/// Null: none of that name.
[[nodiscard]] const Card* find_card(std::string_view name);
/// The free memory of every known card that is sold with that much; `memory` where no card is.
[[nodiscard]] Bytes free_of_size(Bytes memory);

/// A device of that name as a plan's target, with what is free on it less the context; `memory`: a ceiling, or zero.
[[nodiscard]] Result<DeviceChoice> gpu_by_name(std::string_view name, Bytes memory);

}  // namespace neap::plan

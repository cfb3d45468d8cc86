// GPUs that plans can be made for without having one: the vendor's data, and the fraction of it
// that kernels reach.
//
// The fractions were measured on an H200, and NCCL's on two H100s. They are used for every GPU.
//
// Threads   stateless functions.
// Failure   kInvalidArgument with the known names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/rates/device_choice.h"

namespace neap::plan {

[[nodiscard]] std::vector<std::string> gpu_names();

/// Memory that a process uses on a card before it allocates anything: CUDA's context and kernels
/// loaded by libraries. It was measured with libtorch on H100 and H200 as 0.7 to 0.8 GiB.
/// nvidia-smi includes it; a plan does not.
constexpr Bytes kCudaContext = 800_MiB;
/// The part of it that comes after the context: kernels load when they are first used. It was
/// measured as 0.24 GiB.
constexpr Bytes kLaterKernels = 272_MiB;

struct Card {
  std::string_view title;
  Bytes memory;      ///< nominal size
  Bytes free;        ///< free memory that CUDA reports on an idle card
  int architecture;  ///< 90: compute capability 9.0
  [[nodiscard]] constexpr bool bfloat16() const { return architecture >= 80; }
};
/// Null for an unknown card.
[[nodiscard]] const Card* find_card(std::string_view name);
/// The free memory of every known card with this nominal size; `memory` if there is none.
[[nodiscard]] Bytes free_of_size(Bytes memory);

/// The named device as a plan's target, with its free memory minus the context. `memory` is a
/// limit, or zero.
[[nodiscard]] Result<DeviceChoice> gpu_by_name(std::string_view name, Bytes memory);

}  // namespace neap::plan

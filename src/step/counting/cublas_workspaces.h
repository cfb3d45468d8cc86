// The workspaces that cuBLAS keeps for each thread that multiplies. The runtime makes them in this
// order before the first phase, and the plan counts them there. If they were made on first use,
// their position would depend on the phase and change other phases' segments.
//
// Threads   constants.
#pragma once

#include <array>
#include <cstdint>

namespace neap::step {

struct CublasWorkspace {
  bool with_bias;      ///< made by the first product that adds a bias; else by the first one
  std::int64_t bytes;  ///< on Hopper
};
inline constexpr std::array<CublasWorkspace, 2> kCublasWorkspaces = {
    {{false, 32 << 20}, {true, 1 << 20}}};
/// The side of the square bfloat16 matrices that the runtime multiplies for them.
inline constexpr std::int64_t kCublasSide = 16;

}  // namespace neap::step

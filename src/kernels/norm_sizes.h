// Sizes of the kernels of RMS norms. Included by their source (cuda/rms_norm.cu) and by the code that
// plans and launches them.
#pragma once

namespace neap::kernels::norm {

constexpr int kOfThread = 8;       ///< elements of a row
constexpr int kHeadThreads = 256;  ///< of a block whose rows are read by parts of a warp
constexpr int kRowsOfLanes = 4;    ///< that each of its threads reads at once in the forward

}  // namespace neap::kernels::norm

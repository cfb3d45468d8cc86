// Sizes of the sampler's kernels. Included by their source (cuda/sampler.cu) and by the code that
// plans their memory and launches them.
#pragma once

namespace neap::kernels::sampler {

constexpr int kPart = 8192;  ///< logits of a row that one block reads
constexpr int kMostParts = 64;
constexpr int kWindow = 1024;    ///< values that are counted at once
constexpr int kReaders = 256;    ///< threads of a block that reads a part
constexpr int kChoosers = 1024;  ///< threads of a block that chooses a token

}  // namespace neap::kernels::sampler

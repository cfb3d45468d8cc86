// Chooses attention kernels. Measured on an H200 (tests/gpu/attention_kernels.py):
//
//   training, scoring   cuDNN in bfloat16: forward and backward take 0.6 to 0.8 of the time of
//                       FlashAttention. Planning a kernel for a shape takes 70 ms; a job has few.
//   generation          FlashAttention for prefill and decoding (step/attention/decoding.h). cuDNN would plan
//                       a kernel per token, because lengths change.
//   deterministic       FlashAttention, whose backward can be deterministic; cuDNN's cannot
//
// float32 uses the memory-efficient kernel, and unsupported cases use the plain formula. The class
// ops::AtenOps has a KernelChoice of its own and calls the kernel by name, so libtorch's global
// switches for attention kernels have no effect.
//
// Threads   use the scope on the thread that runs the pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "step/operations/own_kernels.h"

namespace neap::bridge {

/// A job's requirements for kernels.
struct KernelChoice {
  bool deterministic = false;  ///< backward passes of attention are bitwise reproducible
  step::OwnKernels own{};
  bool fp8 = false;  ///< passes over whole sequences multiply in fp8
};

/// Enables libtorch's deterministic algorithms during a backward pass through attention, if
/// required. Restores the process's setting.
class AttentionBackward {
 public:
  explicit AttentionBackward(const KernelChoice& choice);
  AttentionBackward(const AttentionBackward&) = delete;
  AttentionBackward& operator=(const AttentionBackward&) = delete;
  ~AttentionBackward();

 private:
  bool deterministic_, before_, warn_only_;
};

/// The kernels that libtorch uses on a device for a job without deterministic mode, tested with
/// tensors of usual shapes.
struct AttentionKernel {
  std::string use;     ///< "training", "prefill", "decode"
  std::string dtype;   ///< "bfloat16", "float32"
  std::string kernel;  ///< "flash", "efficient", "cudnn", "math"
};
[[nodiscard]] std::vector<AttentionKernel> attention_kernels(at::Device device);

}  // namespace neap::bridge

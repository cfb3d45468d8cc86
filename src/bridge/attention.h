// Which of libtorch's attention kernels run. Measured on an H200 (tests/gpu/attention_kernels.py):
//
//   training, scoring   cuDNN in bfloat16: forward and backward take 0.6 to 0.8 of flash attention's
//                       time. It plans a kernel for each shape, which takes 70 ms; a job has few.
//   generation          never cuDNN: the lengths change with every token. Prefill takes flash
//                       attention, decoding the memory-efficient kernel (flash takes no mask)
//   deterministic       flash attention, whose backward pass can repeat its bits; cuDNN's cannot
//
// float32 takes the memory-efficient kernel, and what a kernel does not support the plain formula.
// Threads   pin_attention before the first pass; the scopes on the thread that runs the passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace neap::bridge {

/// Sets the kernels of the process. `deterministic`: backward passes inside an AttentionBackward give
/// the same bits in every run.
void pin_attention(bool deterministic);

/// Around passes of generation, whose shapes change from call to call.
class GenerationAttention {
 public:
  GenerationAttention();
  GenerationAttention(const GenerationAttention&) = delete;
  GenerationAttention& operator=(const GenerationAttention&) = delete;
  ~GenerationAttention();

 private:
  bool before_;
};

/// Around a backward pass through attention. Without `deterministic` it does nothing.
class AttentionBackward {
 public:
  AttentionBackward();
  AttentionBackward(const AttentionBackward&) = delete;
  AttentionBackward& operator=(const AttentionBackward&) = delete;
  ~AttentionBackward();

 private:
  bool before_, warn_only_;
};

/// What libtorch takes on a device now, asked with tensors of usual shapes.
struct AttentionKernel {
  std::string use;     ///< "training", "prefill", "decode"
  std::string dtype;   ///< "bfloat16", "float32"
  std::string kernel;  ///< "flash", "efficient", "cudnn", "math"
};
[[nodiscard]] std::vector<AttentionKernel> attention_kernels(at::Device device);

}  // namespace neap::bridge

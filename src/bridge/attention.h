// Which attention kernels run. Measured on an H200 (tests/gpu/attention_kernels.py):
//
//   training, scoring   cuDNN in bfloat16: forward and backward take 0.6 to 0.8 of flash attention's
//                       time. It plans a kernel for each shape, which takes 70 ms; a job has few.
//   generation          never cuDNN: the lengths change with every token. Prefill and decoding
//                       take flash attention (step/decoding.h)
//   deterministic       flash attention, whose backward pass can repeat its bits; cuDNN's cannot
//
// float32 takes the memory-efficient kernel, and what a kernel does not support the plain formula.
// ops::AtenOps chooses by an AttentionChoice of its own and calls the kernel by name, so libtorch's switches of
// attention kernels do not count.
//
// Threads   the scope on the thread that runs the pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace neap::bridge {

/// What a job asks of its attention.
struct AttentionChoice {
  bool deterministic = false;  ///< backward passes give the same bits in every run
};

/// Around a backward pass through attention: libtorch's deterministic algorithms, where the choice asks for them. What
/// the process had comes back.
class AttentionBackward {
 public:
  explicit AttentionBackward(const AttentionChoice& choice);
  AttentionBackward(const AttentionBackward&) = delete;
  AttentionBackward& operator=(const AttentionBackward&) = delete;
  ~AttentionBackward();

 private:
  bool deterministic_, before_, warn_only_;
};

/// What libtorch takes on a device for a job that need not be deterministic, asked with tensors of usual shapes.
struct AttentionKernel {
  std::string use;     ///< "training", "prefill", "decode"
  std::string dtype;   ///< "bfloat16", "float32"
  std::string kernel;  ///< "flash", "efficient", "cudnn", "math"
};
[[nodiscard]] std::vector<AttentionKernel> attention_kernels(at::Device device);

}  // namespace neap::bridge

#include "bridge/attention.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace neap::bridge {
namespace {

/// While it lives, libtorch may or may not choose cuDNN.
class CudnnAllowed {
 public:
  explicit CudnnAllowed(bool allowed) : before_(at::globalContext().userEnabledCuDNNSDP()) {
    at::globalContext().setSDPUseCuDNN(allowed);
  }
  CudnnAllowed(const CudnnAllowed&) = delete;
  CudnnAllowed& operator=(const CudnnAllowed&) = delete;
  ~CudnnAllowed() { at::globalContext().setSDPUseCuDNN(before_); }

 private:
  bool before_;
};

const char* name_of(at::SDPBackend backend) {
  switch (backend) {
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "efficient";
    case at::SDPBackend::cudnn_attention:
      return "cudnn";
    case at::SDPBackend::math:
      return "math";
    default:
      return "none";
  }
}

}  // namespace

AttentionBackward::AttentionBackward(const KernelChoice& choice)
    : deterministic_(choice.deterministic),
      before_(at::globalContext().deterministicAlgorithms()),
      warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
  // Limited to this scope. Elsewhere the switch makes libtorch copy whole KV caches, and Neap's
  // kernels are deterministic without it.
  if (deterministic_) at::globalContext().setDeterministicAlgorithms(true, false);
}

AttentionBackward::~AttentionBackward() {
  if (deterministic_) at::globalContext().setDeterministicAlgorithms(before_, warn_only_);
}

std::vector<AttentionKernel> attention_kernels(at::Device device) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kBatch = 2, kHeads = 4, kTokens = 64, kWidth = 64;
  std::vector<AttentionKernel> out;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const char* name = dtype == at::kFloat ? "float32" : "bfloat16";
    const auto options = at::TensorOptions().dtype(dtype).device(device);
    const at::Tensor keys = at::zeros({kBatch, kHeads, kTokens, kWidth}, options);
    const at::Tensor query = at::zeros({kBatch, kHeads, 1, kWidth}, options);
    const at::Tensor mask = at::ones({kBatch, 1, 1, kTokens}, options.dtype(at::kBool));
    const auto add = [&](const char* use, std::int64_t choice) {
      out.push_back({use, name, name_of(static_cast<at::SDPBackend>(choice))});
    };
    {
      const at::AutoGradMode recording(true);
      const CudnnAllowed training(true);
      const at::Tensor leaf = keys.clone().requires_grad_();
      add("training", at::_fused_sdp_choice(leaf, leaf, leaf, std::nullopt, 0.0, true));
    }
    const CudnnAllowed generation(false);
    add("prefill", at::_fused_sdp_choice(keys, keys, keys, std::nullopt, 0.0, true));
    // FlashAttention gets the number of keys (step/attention/decoding.h); other kernels need a mask.
    const bool counted = device.is_cuda() && dtype != at::kFloat;
    add("decode", at::_fused_sdp_choice(query, keys, keys,
                                        counted ? std::nullopt : std::optional(mask), 0.0, false));
  }
  return out;
}

}  // namespace neap::bridge

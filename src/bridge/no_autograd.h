// Tensor operations of this thread without autograd.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace neap::bridge {

/// While it lives, operations of this thread record nothing and skip the dispatcher's autograd layers: host time that
/// counts where tensors are small, as in decoding. No tensor may require gradients. Scopes end in the
/// reverse order of their beginnings.
struct NoAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

}  // namespace neap::bridge

// Disables autograd for tensor operations of this thread.
//
// Threads   each scope belongs to one thread.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace neap::bridge {

/// While it lives, operations of this thread record nothing and skip the dispatcher's autograd
/// layers. That saves host time, which matters for small tensors, as in decoding. No tensor may
/// require gradients. Scopes end in reverse order.
struct NoAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

}  // namespace neap::bridge

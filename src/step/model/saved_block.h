// The state that a block's forward keeps for its backward.
#pragma once

#include "spec/model/checkpointing.h"
#include "step/operations/operations.h"

namespace neap::step {

/// The input of a norm's backward in addition to the norm's input.
template <class T>
struct NormStatistics {
  T mean, rstd;  // (N, 1); mean is undefined for RMS norms
};

/// The tensors of spec::SavedTensor by name. A tensor that the retention does not keep is undefined
/// between forward and backward. Statistics belong to the tensor that their norm produces.
template <class T>
struct SavedBlock {
  spec::BlockRetention retention;
  T input;  // (N, C)

  T attention_input;                 // (N, C)
  NormStatistics<T> attention_norm;  //
  T query, key;                      // (N, H, D), (N, K, D): before their norms, if there are any
  NormStatistics<T> query_norm, key_norm;
  AttentionContext<T> attention;      // .heads has v of kProjections, and q and k of kQueryKey
  T attention_result;                 // (N, C)
  NormStatistics<T> attention_after;  // of kMiddle
  T middle;                           // (N, C)

  T mlp_input;                 // (N, C)
  NormStatistics<T> mlp_norm;  //
  T gate, up;                  // (N, F)
  T activated, product;        // (N, F)
  T mlp_result;                // (N, C)
  NormStatistics<T> mlp_after;
};

}  // namespace neap::step

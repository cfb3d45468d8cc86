// The weights of a decoder-only transformer over flat parameters, for the passes of step/.
//
// Model     Weights, and gradients of trained units, are 1-D tensors given by the caller, one per
//           unit of spec::flat_layout. The model keeps views, and owns no memory that outlives a
//           call. Any floating type is possible. Norms, softmax and log-probabilities are computed
//           in float32 (float64 for a float64 model).
// Training  Gradients are added to the flat gradient tensors, which the caller zeroes. autograd
//           records nothing.
// Threads   one call at a time.
// Failure   neap::Error for shapes that disagree; c10::Error from libtorch.
// Cost      views; no tensor memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ops/aten_ops.h"
#include "ops/slot_blocks.h"
#include "spec/model/layout.h"
#include "step/model/paged_cache.h"
#include "step/model/transformer.h"
#include "step/units/units.h"

namespace neap::ops {

/// One tensor per flat unit. `grads` is empty if nothing is trained; otherwise it has one entry per
/// unit, undefined if the unit is frozen. The type of gradients may be wider than that of weights.
struct FlatTensors {
  std::vector<at::Tensor> weights;  // each (unit.elements,)
  std::vector<at::Tensor> grads;    // each (unit.elements,)
};

/// Throws unless `t` fits the flat unit. `what` names it in the message.
void check_flat(const at::Tensor& t, const spec::FlatUnit& unit, const char* what);
/// A parameter of a flat unit, in its shape.
[[nodiscard]] at::Tensor parameter_view(const at::Tensor& flat, const spec::Parameter& p);
[[nodiscard]] at::Tensor neighbours_view(const at::Tensor& flat, const spec::Neighbours& all);

struct Lora {
  spec::LoraShape shape;
  FlatTensors adapters;
};

/// Keys and values of past tokens, in tensors given by the caller.
struct KvCache : step::SlotCache<at::Tensor> {
  /// Views of one flat tensor with layout [layer][key, value](B, K, T_max, D).
  [[nodiscard]] static KvCache over(const at::Tensor& flat, const spec::Architecture& architecture,
                                    std::int64_t batch, std::int64_t max_tokens);
  [[nodiscard]] static std::int64_t elements(const spec::Architecture& architecture,
                                             std::int64_t batch, std::int64_t max_tokens);
};

using PagedKvCache = step::PagedCache<at::Tensor>;
using AnyKvCache = std::variant<KvCache, PagedKvCache>;
/// Views of a flat tensor with [layer][key, value](pages, K, tokens of a page, D), or of slots.
/// `table` has int64 for the pages of rows.
[[nodiscard]] AnyKvCache cache_over(const at::Tensor& flat, const at::Tensor& table,
                                    const spec::Architecture& architecture,
                                    const step::CacheShape& shape);

/// A named view of part of a flat unit.
struct NamedParameter {
  std::string name;
  std::size_t unit = 0;
  at::Tensor weight;
  at::Tensor grad;  ///< undefined if frozen
};

class Transformer {
 public:
  /// With `streamed`, the blocks in `base` are ignored. `peers` has the tensor-parallel group, for
  /// a shard of a model (spec/model/tensor_parallel.h), and the context-parallel group.
  Transformer(const spec::Architecture& architecture, spec::Head head, FlatTensors base,
              std::optional<Lora> lora = std::nullopt,
              std::optional<StreamedBase> streamed = std::nullopt,
              bridge::KernelChoice kernels = {}, Peers peers = {});
  Transformer(Transformer&&) noexcept = default;
  Transformer& operator=(Transformer&&) noexcept = default;

  [[nodiscard]] const spec::Architecture& architecture() const { return weights_.architecture; }
  [[nodiscard]] spec::Head head() const { return weights_.head; }
  [[nodiscard]] at::Device device() const { return ops_.device(); }
  [[nodiscard]] at::ScalarType dtype() const { return step::any_weight(weights_).scalar_type(); }
  /// Base parameters in the order of flat_layout; adapters in the order of lora_layout.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<NamedParameter>& adapters() const { return adapters_; }
  /// The weights and operations for the passes of step/.
  [[nodiscard]] const step::Weights<at::Tensor>& weights() const { return weights_; }
  [[nodiscard]] AtenOps& ops() { return ops_; }
  /// `sink` receives gradients once backward has added them, and must outlive the passes. Null:
  /// they stay in place.
  void send_gradients(step::GradientSink<at::Tensor>* sink) { weights_.sink = sink; }

 private:
  void bind(const std::vector<spec::FlatUnit>& units, const FlatTensors& flat, const char* what,
            std::vector<NamedParameter>& named);
  void bind_adapters(const Lora& lora);
  void bind_tables(const StreamedBase& streamed);

  step::Weights<at::Tensor> weights_;
  std::unique_ptr<step::BlockSource<at::Tensor>> streamed_;  // weights_.source
  AtenOps ops_;
  std::vector<NamedParameter> parameters_, adapters_;
};

}  // namespace neap::ops

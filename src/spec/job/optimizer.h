// The state of an optimizer for each trained flat unit: named tensors with shapes, types and
// offsets.
//
// Plans use the sizes, the trainer creates views, and checkpoints store the tensors under these
// names. docs/architecture.md describes how to add an optimizer.
//
// Threads   values and stateless functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "spec/model/layout.h"
#include "spec/types/dtype.h"

namespace neap::spec {

struct OptimizerConfig;  // spec/job/job.h

/// A tensor of a unit's state. It covers either the whole unit including padding, as a fused kernel
/// over the flat unit needs, or one parameter (a factored moment: a row and a column).
struct StateTensor {
  static constexpr std::int64_t kWholeUnit = -1;
  std::string name;                     ///< "exp_avg"
  std::int64_t parameter = kWholeUnit;  ///< index in FlatUnit::parameters
  int dimension = 0;                    ///< dimension of that parameter that the elements follow
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  Bytes offset;  ///< from the start of the unit's state
  [[nodiscard]] Bytes bytes() const { return tensor_bytes(elements, dtype); }
};
constexpr Bytes kStateAlignment = 256_B;  ///< of every state tensor

/// The state of one unit, in one contiguous region.
class UnitState {
 public:
  void add(std::string name, std::int64_t elements, Dtype dtype,
           std::int64_t parameter = StateTensor::kWholeUnit, int dimension = 0);
  [[nodiscard]] const std::vector<StateTensor>& tensors() const { return tensors_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  /// Null if the optimizer keeps no such tensor.
  [[nodiscard]] const StateTensor* find(std::string_view name,
                                        std::int64_t parameter = StateTensor::kWholeUnit) const;

 private:
  std::vector<StateTensor> tensors_;
  Bytes bytes_;
};

enum class OptimizerKind : std::uint8_t {
  kAdamW,
  kAdafactor,
  kSm3,
  kSgd,
};
[[nodiscard]] std::string_view to_string(OptimizerKind kind);
[[nodiscard]] Result<OptimizerKind> parse_optimizer(std::string_view name);
/// All optimizers that a configuration can name.
[[nodiscard]] std::vector<std::string> optimizer_names();
/// Last components of the configuration keys that only some optimizers read and this one does.
[[nodiscard]] std::vector<std::string> optimizer_keys(OptimizerKind kind);

/// Whether updates of elements are independent, so that states may be cut anywhere.
[[nodiscard]] bool is_elementwise(OptimizerKind kind);

/// An optimizer with the types of all tensors of an update.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdamW;
  Dtype weights = Dtype::kFloat32;    ///< type in forward and backward
  Dtype gradients = Dtype::kFloat32;  ///< type in which micro-batches accumulate gradients
  Dtype states = Dtype::kFloat32;
  Dtype master = Dtype::kFloat32;  ///< type that updates are added in
  bool momentum = false;           ///< for sgd and sm3: keep a momentum buffer

  /// For weights of type `weights`. With float64, all types are float64. Fails for incompatible
  /// types.
  [[nodiscard]] static Result<OptimizerSpec> of(const OptimizerConfig& config, Dtype weights);

  /// Whether a master copy receives the updates, because the weights' type is too coarse for small
  /// updates.
  [[nodiscard]] bool has_master() const { return element_bytes(weights) < element_bytes(master); }
  [[nodiscard]] UnitState state(const FlatUnit& unit) const;
  [[nodiscard]] Bytes gradient_bytes(const FlatUnit& unit) const;
};

}  // namespace neap::spec

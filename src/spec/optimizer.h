// What an optimizer keeps for each trained flat unit: named tensors with shapes, types and places.
//
// Plans take the bytes from here, the trainer makes its views from here and checkpoints store the
// tensors by these names. docs/architecture.md has the steps that add an optimizer.
//
// Threads   values and functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "spec/dtype.h"
#include "spec/layout.h"

namespace neap::spec {

struct OptimizerConfig;  // spec/job.h

/// One tensor of a unit's state. It belongs to the whole unit, padding included (as a
/// fused kernel over the flat unit needs), or to one parameter (a factored moment: a row and a column).
struct StateTensor {
  static constexpr std::int64_t kWholeUnit = -1;
  std::string name;                     ///< "exp_avg"
  std::int64_t parameter = kWholeUnit;  ///< index in FlatUnit::parameters
  int dimension = 0;                    ///< of that parameter, which the elements are along
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  Bytes offset;  ///< from the start of the unit's state
  [[nodiscard]] Bytes bytes() const { return tensor_bytes(elements, dtype); }
};
constexpr Bytes kStateAlignment = 256_B;  ///< of every state tensor

/// The state of one unit in one contiguous region.
class UnitState {
 public:
  void add(std::string name, std::int64_t elements, Dtype dtype,
           std::int64_t parameter = StateTensor::kWholeUnit, int dimension = 0);
  [[nodiscard]] const std::vector<StateTensor>& tensors() const { return tensors_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  /// Null when the optimizer keeps no such tensor.
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
/// The kinds that a configuration can name.
[[nodiscard]] std::vector<std::string> optimizer_names();
/// Last words of the configuration keys that this kind reads and not every kind does.
[[nodiscard]] std::vector<std::string> optimizer_keys(OptimizerKind kind);

/// An element's update depends on no other element: states may be cut anywhere.
[[nodiscard]] bool is_elementwise(OptimizerKind kind);

/// An optimizer with the types of everything that an update touches.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdamW;
  Dtype weights = Dtype::kFloat32;    ///< what forward and backward read
  Dtype gradients = Dtype::kFloat32;  ///< what micro-batches add up in
  Dtype states = Dtype::kFloat32;
  Dtype master = Dtype::kFloat32;  ///< what updates are added to
  bool momentum = false;           ///< sgd and sm3: a buffer of the weights' size

  /// For weights of type `weights`; of float64 everything is. Fails on types that do not go together.
  [[nodiscard]] static Result<OptimizerSpec> of(const OptimizerConfig& config, Dtype weights);

  /// The weights are too coarse to take small updates: a "master" copy takes them.
  [[nodiscard]] bool has_master() const { return element_bytes(weights) < element_bytes(master); }
  [[nodiscard]] UnitState state(const FlatUnit& unit) const;
  [[nodiscard]] Bytes gradient_bytes(const FlatUnit& unit) const;
};

}  // namespace neap::spec

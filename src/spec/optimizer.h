// What an optimizer keeps for each trained flat unit: named tensors with shapes, types and places.
//
// Plans take the bytes from here, the trainer makes its views from here and checkpoints store the
// tensors by these names. A new optimizer is one function in optimizer.cpp, and its kernel.
//
// Threads   values and functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "spec/dtype.h"
#include "spec/layout.h"

namespace neap::spec {

/// One tensor of a unit's state. It belongs to the whole unit, padding included (what a fused
/// kernel over the flat unit wants), or to one parameter (a factored moment: a row and a column).
struct StateTensor {
  static constexpr std::int64_t kWholeUnit = -1;
  std::string name;                     ///< "exp_avg"
  std::int64_t parameter = kWholeUnit;  ///< index in FlatUnit::parameters
  std::vector<std::int64_t> shape;
  Dtype dtype = Dtype::kFloat32;
  Bytes offset;  ///< from the start of the unit's state
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] Bytes bytes() const;
};
constexpr Bytes kStateAlignment = 256_B;  ///< of every state tensor

/// The state of one unit in one contiguous region.
class UnitState {
 public:
  void add(std::string name, std::vector<std::int64_t> shape, Dtype dtype,
           std::int64_t parameter = StateTensor::kWholeUnit);
  [[nodiscard]] const std::vector<StateTensor>& tensors() const { return tensors_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  /// Null when the optimizer keeps no such tensor.
  [[nodiscard]] const StateTensor* find(std::string_view name,
                                        std::int64_t parameter = StateTensor::kWholeUnit) const;

 private:
  std::vector<StateTensor> tensors_;
  Bytes bytes_;
};

constexpr Dtype kGradientDtype = Dtype::kFloat32;  ///< what micro-batches add up in

struct OptimizerSpec {
  std::string kind = "adamw";       ///< one of optimizer_names()
  Dtype weights = Dtype::kFloat32;  ///< what forward and backward read
  Dtype gradients = kGradientDtype;
  Dtype moments = Dtype::kFloat32;
  Dtype master = Dtype::kFloat32;  ///< what updates are added to

  /// The weights are too coarse to take small updates: a "master" copy takes them.
  [[nodiscard]] bool has_master() const { return element_bytes(weights) < element_bytes(master); }
  [[nodiscard]] UnitState state(const FlatUnit& unit) const;
  [[nodiscard]] Bytes gradient_bytes(const FlatUnit& unit) const;
};

/// The kinds that a configuration can name.
[[nodiscard]] std::vector<std::string> optimizer_names();

}  // namespace neap::spec

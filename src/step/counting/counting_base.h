// Counted operations that others consist of: they make tensors, view them, or compute each element
// from those at the same place.
//
// Threads, failures and costs are those of counting_ops.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/types/dtype.h"
#include "step/counting/counted_tensor.h"
#include "step/counting/work_meter.h"
#include "step/operations/operations.h"

namespace neap::step {

class CountingBase : public WorkMeter {
 public:
  using Tensor = CountedTensor;

  [[nodiscard]] bool cuda() const { return profile().cuda; }

  // ---- making ----
  [[nodiscard]] Dtype dtype(const Tensor& t) const { return t.dtype(); }
  [[nodiscard]] Tensor empty(const Shape& shape, Dtype dtype) { return make(shape, dtype); }
  [[nodiscard]] Tensor zeros(const Shape& shape, Dtype dtype) { return make(shape, dtype); }
  [[nodiscard]] Tensor ones_like(const Tensor& t) { return make(t.shape(), t.dtype()); }
  [[nodiscard]] Tensor clone(const Tensor& t) { return make(t.shape(), t.dtype()); }
  /// 0, stride, 2 stride ... (n,) int64.
  [[nodiscard]] Tensor iota(std::int64_t n, std::int64_t stride = 1);
  [[nodiscard]] Tensor from_host(const std::vector<float>& values);
  [[nodiscard]] Tensor from_host(const std::vector<std::int64_t>& values);
  /// A host tensor on the device; no copy is made if the device is the host.
  [[nodiscard]] Tensor to_device(const Tensor& t);
  /// A copy outside the phase's memory.
  [[nodiscard]] Tensor to_host(const Tensor& t);
  /// Copies a few numbers to the host. They are valid after wait_for_device(), or wait_for() a later mark.
  [[nodiscard]] Tensor to_host_later(const Tensor& t) { return to_host(t); }
  void wait_for_device() const {}
  /// A point in the device's work.
  struct Mark {};
  [[nodiscard]] Mark mark() const { return {}; }
  /// Waits for the work before a mark.
  void wait_for(const Mark&) const {}
  /// A copy in pinned host memory that only from_pinned() may read. On a GPU nothing waits for it.
  [[nodiscard]] Tensor to_pinned(const Tensor& t);
  /// Copies it back to the device; no copy is made if the device is the host.
  [[nodiscard]] Tensor from_pinned(const Tensor& t);
  /// The value of a tensor with one element; 1 for a counted tensor.
  [[nodiscard]] double read(const Tensor&) const { return 1; }
  /// The values of a tensor (n,), through host memory.
  [[nodiscard]] std::vector<double> read_all(const Tensor& t) const {
    return std::vector<double>(static_cast<std::size_t>(t.size(0)), 1);
  }

  // ---- views ----
  [[nodiscard]] Tensor view(const Tensor& t, Shape shape);  ///< one size may be -1
  [[nodiscard]] Tensor transpose(const Tensor& t);          ///< the last two dimensions
  [[nodiscard]] Tensor narrow(const Tensor& t, std::int64_t dimension, std::int64_t first,
                              std::int64_t count);
  [[nodiscard]] Tensor select(const Tensor& t, std::int64_t dimension, std::int64_t index);
  /// x (B * T, H, D) -> (B, H, T, D).
  [[nodiscard]] Tensor by_head(const Tensor& x, std::int64_t sequences);
  /// `t` itself if it already has the type.
  [[nodiscard]] Tensor convert(Tensor t, Dtype dtype);

  // ---- elementwise; the second operand broadcasts ----
  [[nodiscard]] Tensor add(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor subtract(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor multiply(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor divide(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor maximum(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor minimum(const Tensor& a, const Tensor& b) { return elementwise(a, b); }
  [[nodiscard]] Tensor plus(const Tensor& a, std::int64_t b);  ///< int64
  [[nodiscard]] Tensor negate(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor absolute(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor sign(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor exp(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor cosine(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor sine(const Tensor& a) { return unary(a); }
  [[nodiscard]] Tensor sigmoid(const Tensor& a) { return unary(a); }
  /// On the CPU the kernel also writes a buffer of the result's size.
  [[nodiscard]] Tensor log_sigmoid(const Tensor& a);
  [[nodiscard]] Tensor clamp(const Tensor& a, double, double) { return unary(a); }
  /// On the CPU an operand of another type is converted first.
  void add_(const Tensor& a, const Tensor& b);
  void add_(const Tensor& a, double) { in_place(a); }
  void subtract_(const Tensor& a, const Tensor& b) { in_place(a, b); }
  void multiply_(const Tensor& a, const Tensor& b) { in_place(a, b); }
  void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b);
  void divide_(const Tensor& a, const Tensor& b) { in_place(a, b); }
  void divide_(const Tensor& a, double) { in_place(a); }
  void scale_(const Tensor& a, double) { in_place(a); }
  void add_scaled_(const Tensor& a, const Tensor& b, double) { in_place(a, b); }  ///< a += scale b
  /// a += scale b c.
  void add_multiply_(const Tensor& a, const Tensor& b, const Tensor& c, double);
  void sqrt_(const Tensor& a) { in_place(a); }
  void rsqrt_(const Tensor& a) { in_place(a); }
  void exp_(const Tensor& a) { in_place(a); }
  void log_(const Tensor& a) { in_place(a); }
  void zero_(const Tensor& a);
  void copy_(const Tensor& a, const Tensor& b);
  // Comparisons return 1 or 0 in the operands' type, through a boolean of the same shape.
  [[nodiscard]] Tensor above(const Tensor& a, const Tensor&) { return comparison(a); }
  [[nodiscard]] Tensor above(const Tensor& a, double) { return comparison(a); }
  [[nodiscard]] Tensor at_least(const Tensor& a, const Tensor&) { return comparison(a); }
  [[nodiscard]] Tensor at_most(const Tensor& a, double) { return comparison(a); }
  [[nodiscard]] Tensor equal(const Tensor& a, const Tensor&) { return comparison(a); }
  /// cap * tanh(a / cap).
  void softcap_(const Tensor& a, double) { in_place(a); }
  /// The derivative for capped values: 1 - (a / cap)^2.
  [[nodiscard]] Tensor softcap_slope(const Tensor& a, double) { return unary(a); }
  [[nodiscard]] Tensor activate(const Tensor& a, spec::Activation) { return unary(a); }
  void activate_(const Tensor& a, spec::Activation) { in_place(a); }
  [[nodiscard]] Tensor activate_backward(const Tensor& dy, const Tensor& x, spec::Activation) {
    return elementwise(dy, x);
  }

 protected:
  CountingBase(MemorySink& sink, const KernelProfile& profile, std::int64_t most_repeats)
      : WorkMeter(profile, most_repeats), sink_(&sink) {}

  [[nodiscard]] Tensor make(const Shape& shape, Dtype dtype);
  [[nodiscard]] Tensor with_shape(const Tensor& t, const Shape& shape) const;
  [[nodiscard]] Tensor unary(const Tensor& a);
  [[nodiscard]] Tensor elementwise(const Tensor& a, const Tensor& b);
  [[nodiscard]] Tensor comparison(const Tensor& a);
  void in_place(const Tensor& a);
  void in_place(const Tensor& a, const Tensor& b);
  void touch(std::int64_t elements, Dtype dtype) { (void)make({elements}, dtype); }

  MemorySink* sink_;
};

}  // namespace neap::step

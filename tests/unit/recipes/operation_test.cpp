// CONTRIBUTING.md, "To add an operation": `cube`, declared and counted on one side, computed on
// the other, used by a pass, and held to the same requests.
#include <gtest/gtest.h>

#include "unit/operations/conformance.h"

namespace neap {
namespace {

// Step 1: two results of a's size, of which one stays.
class CountingWithCube : public step::CountingOps {
 public:
  using CountingOps::CountingOps;
  Tensor cube(const Tensor& a) {
    const Tensor square = multiply(a, a);
    return multiply(square, a);
  }
};
// Step 2.
class AtenWithCube : public ops::AtenOps {
 public:
  using AtenOps::AtenOps;
  [[nodiscard]] Tensor cube(const Tensor& a) const {
    const Tensor square = at::mul(a, a);
    return at::mul(square, a);
  }
};

template <class Ops>
concept RunsThePass = requires(Ops& ops, const typename Ops::Tensor& x) {
  ops.add(ops.cube(x), x);
};
static_assert(RunsThePass<AtenWithCube> && RunsThePass<CountingWithCube>);
// What one side lacks does not compile.
static_assert(!RunsThePass<ops::AtenOps> && !RunsThePass<step::CountingOps>);

// Step 3.
TEST(OperationRecipe, BothSidesMakeTheSameRequests) {
  for (const step::Dtype d : {step::Dtype::kFloat32, step::Dtype::kBfloat16}) {
    testing::expect_same_requests<AtenWithCube, CountingWithCube>("cube", [d](auto& ops, auto in) {
      return [&ops, a = in({64, 48}, d)] { (void)ops.add(ops.cube(a), a); };
    });
  }
}

}  // namespace
}  // namespace neap

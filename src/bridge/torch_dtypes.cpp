#include "bridge/torch_dtypes.h"

#include "base/format.h"
#include "base/status.h"

namespace neap::bridge {

using spec::Dtype;

Dtype to_step(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return Dtype::kBool;
    case at::kLong:
      return Dtype::kInt64;
    case at::kBFloat16:
      return Dtype::kBfloat16;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kDouble:
      return Dtype::kFloat64;
    default:
      throw Error(ErrorCode::kUnsupported,
                  format("no operation works on tensors of {}", c10::toString(type)));
  }
}

at::ScalarType to_aten(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return at::kBool;
    case Dtype::kInt64:
      return at::kLong;
    case Dtype::kBfloat16:
      return at::kBFloat16;
    case Dtype::kFloat16:
      return at::kHalf;
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kFloat64:
      return at::kDouble;
  }
  throw Error(ErrorCode::kInternal, "element type out of range");
}

}  // namespace neap::bridge

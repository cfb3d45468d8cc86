// Activations of an MLP.

enum Activation { kSilu, kGelu, kGeluTanh, kRelu };  // spec::Activation

constexpr float kSqrtHalf = 0.70710678118654752440f;
constexpr float kTwoOverSqrtPi = 1.12837916709551257390f;
constexpr float kSqrtTwo = 1.41421356237309504880f;
constexpr float kTanhBeta = kSqrtTwo * kTwoOverSqrtPi * 0.5f;
constexpr float kTanhKappa = 0.044715f;

__device__ inline float activated(int kind, float x) {
  switch (kind) {
    case kSilu:
      return x / (1.0f + expf(-x));
    case kGelu:
      return x * 0.5f * (1.0f + erff(x * kSqrtHalf));
    case kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(kTanhBeta * (x + kTanhKappa * x * x * x)));
    default:
      return x < 0.0f ? 0.0f : x;
  }
}

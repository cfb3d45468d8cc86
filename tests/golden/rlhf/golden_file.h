// goldens.json of this folder as tensors, in double so that only formulas are compared.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"

namespace neap::testing {

inline const Json& goldens() {
  static const Json kGoldens = [] {
    const std::string path = NEAP_SOURCE_DIR "/tests/golden/rlhf/goldens.json";
    return value_or_throw(parse_json(value_or_throw(read_file(path)), path));
  }();
  return kGoldens;
}

inline at::Tensor numbers(const Json& list) {
  return at::tensor(list.get<std::vector<double>>(), at::kDouble);
}
inline at::Tensor table(const Json& rows) {
  std::vector<at::Tensor> out;
  for (const Json& row : rows) out.push_back(numbers(row));
  return at::stack(out);
}
/// (B, width): 1 on the first tokens of each row.
inline at::Tensor mask_of(const Json& lengths, std::int64_t width) {
  const at::Tensor columns = at::arange(width).unsqueeze(0);
  return columns.lt(numbers(lengths).unsqueeze(1)).to(at::kDouble);
}

/// Within 1e-6, relative where a value is larger than 1.
inline void expect_close(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LT(((got - want).abs() / want.abs().clamp_min(1)).max().item<double>(), 1e-6)
      << got << want;
}
inline void expect_close(double got, double want) {
  EXPECT_NEAR(got, want, 1e-6 * std::max(1.0, std::abs(want)));
}

}  // namespace neap::testing

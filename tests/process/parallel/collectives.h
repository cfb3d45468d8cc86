// What the parts of the program share: checks, and tensors that each rank can work out by itself.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace collectives {

using neap::parallel::Communicator;

inline int checks = 0;

inline void expect(bool ok, const std::string& what) {
  ++checks;
  if (!ok) throw std::runtime_error("wrong: " + what);
}

// What rank `r` brings: small whole numbers, so that sums are exact in every type.
inline at::Tensor brought(int r, std::int64_t n, at::ScalarType type, at::Device device) {
  return at::arange(n, at::kLong).add(3 * r).remainder(7).add(r).to(device, type);
}

// Parts of awkward sizes: even ones, ones with a rest, whole tensors on one rank, ranks without any.
inline std::vector<std::vector<std::int64_t>> cuts_of(std::int64_t n, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::vector<std::int64_t>> out;
  std::vector<std::int64_t> even(ranks, n / size), last(ranks), spread(ranks);
  even.back() += n % size;
  last.back() = n;
  std::int64_t left = n;
  for (std::size_t r = 0; r + 1 < ranks; ++r) left -= spread[r] = left / 3;
  spread.back() = left;
  for (auto cut : {even, last, spread}) {
    out.push_back(cut);
    std::reverse(cut.begin(), cut.end());
    out.push_back(cut);
  }
  return out;
}

// What rounds: a part's sum has the bits of a sum of the whole, where sums are Neap's own.
inline at::Tensor rounded(int r, std::int64_t n, at::ScalarType type, at::Device device) {
  return at::isIntegralType(type, false)
             ? brought(r, n, type, device)
             : at::arange(n, at::kDouble).add(1 + r).rsqrt().mul(r + 1).to(device, type);
}

/// Sums, and gathers, that run beside a rank's own work.
void run_lane(Communicator& ranks, at::Device device);
void run_lane_gathers(Communicator& ranks, at::Device device);
/// Tensors that go through every slot many times.
void run_long_lane(Communicator& ranks, at::Device device);
/// Begins sums until this rank is to fail: the others wait in their lane.
void fail_in_lane(Communicator& ranks, bool chosen, at::Device device);

}  // namespace collectives

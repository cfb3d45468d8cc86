// One piece of work on libtorch and over operations that only count: the same requests, in order,
// with the same sizes, given back at the same moments.
//
// On the CPU by default. NEAP_TEST_DEVICE=cuda compares with what libtorch's own allocator gives
// out on a GPU.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "bridge/no_autograd.h"
#include "bridge/torch_cuda.h"
#include "cuda_recorder.h"
#include "mute_ranks.h"
#include "ops/aten_ops.h"
#include "recording_allocator.h"
#include "step/counting/counting_ops.h"

namespace neap::testing {

inline at::Device test_device() {
  static const at::Device kDevice = [] {
    const char* name = std::getenv("NEAP_TEST_DEVICE");
    if (name == nullptr || std::string_view(name) != "cuda") return at::Device(at::kCPU);
    const bridge::TorchCuda& cuda = bridge::torch_cuda();
    if (!cuda.available) throw std::runtime_error("no GPU: " + cuda.reason);
    return at::Device(at::kCUDA, 0);
  }();
  return kDevice;
}

/// On a GPU one with as many multiprocessors as an H100 or H200.
inline step::KernelProfile test_profile() {
  step::KernelProfile profile;
  profile.cuda = profile.own.on = test_device().is_cuda();
  profile.threads = at::get_num_threads();
  return profile;
}

inline bridge::KernelChoice test_kernels(bool fp8 = false) {
  return {.own = test_profile().own, .fp8 = fp8};
}

/// Records the requests of the test's device.
inline void start_recording() {
  if (test_device().is_cuda())
    start_cuda_recording();
  else
    RecordingAllocator::instance().start();
}
inline Requests stop_recording() {
  return test_device().is_cuda() ? stop_cuda_recording() : RecordingAllocator::instance().stop();
}

// Tensors that are there before the work.
struct AtenInputs {
  at::Tensor operator()(const step::Shape& shape, step::Dtype dtype) const {
    const auto options = at::dtype(bridge::to_aten(dtype)).device(test_device());
    const at::IntArrayRef sizes(shape.begin(), shape.rank());
    if (dtype == step::Dtype::kInt64) return at::zeros(sizes, options);
    return at::rand(sizes, at::kFloat).add_(0.1).to(options);
  }
  [[nodiscard]] at::Tensor host(const step::Shape& shape, step::Dtype dtype) const {
    return (*this)(shape, dtype).cpu();
  }
};
struct CountedInputs {
  step::CountedTensor operator()(const step::Shape& shape, step::Dtype dtype) const {
    return step::CountedTensor::outside(shape, dtype);
  }
  [[nodiscard]] step::CountedTensor host(const step::Shape& shape, step::Dtype dtype) const {
    return (*this)(shape, dtype);
  }
};

/// `prepare(ops, in)` makes its inputs with `in` and returns a callable that does the work. `ranks`: that
/// divide a model, and as many that divide sequences, of which this is the last.
template <class Aten = ops::AtenOps, class Counting = step::CountingOps, class Prepare>
void expect_same_requests(const char* name, const Prepare& prepare, int ranks = 1) {
  const bridge::NoAutograd no_autograd;
  if (!test_device().is_cuda()) (void)RecordingAllocator::instance();
  MuteRanks others(ranks - 1, ranks);
  Aten aten(test_device(), test_kernels(), {&others, &others});
  auto work = prepare(aten, AtenInputs{});
  work();  // what libtorch makes once a process
  start_recording();
  work();
  const Requests measured = stop_recording();
  RecordingSink sink;
  step::KernelProfile profile = test_profile();
  profile.tensor_ranks = profile.context_ranks = ranks;
  Counting counting(sink, profile, 1 << 20);
  prepare(counting, CountedInputs{})();
  EXPECT_EQ(difference(measured, sink.requests), "") << name;
  EXPECT_TRUE(sink.empty()) << name;
}

}  // namespace neap::testing

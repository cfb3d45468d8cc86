// Threads that move pieces work on the streams of the thread that they help: of a device whose streams are only numbers.
#include "weights/tensor_pieces.h"

#include <ATen/ATen.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "bridge/streams.h"

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuardImpl<DeviceType::PrivateUse1>);
}  // namespace c10::impl

namespace neap::weights {
namespace {

using Device = c10::Device;

c10::Stream stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, Device(c10::kPrivateUse1, device), id);
}

class Streams : public ::testing::Test {
 protected:
  static constexpr std::int64_t kPieces = 64;
  // Nobody looks at its memory.
  at::Tensor tensor(c10::DeviceIndex device) {
    const Device on(c10::kPrivateUse1, device);
    return at::for_blob(memory_.data(), {kPieces})
        .options(at::dtype(at::kFloat).device(on))
        .target_device(on)
        .make_tensor();
  }
  /// The streams of a device that pieces are moved on.
  std::set<c10::StreamId> seen(const std::vector<at::Tensor>& tensors, c10::DeviceIndex device) {
    std::vector<TensorPiece> pieces;
    for (std::uint64_t i = 0; i < kPieces; ++i) pieces.push_back({0, i, 1});
    std::mutex mutex;
    std::set<c10::StreamId> out;
    std::set<std::thread::id> threads;
    for_each_piece(tensors, pieces, 4, [&](const TensorPiece&, PieceBuffer&, PieceBuffer&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that others come
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
      out.insert(bridge::current_stream(Device(c10::kPrivateUse1, device)).id());
    });
    EXPECT_GT(threads.size(), 1U);
    return out;
  }
  std::vector<float> memory_ = std::vector<float>(kPieces);
};

TEST_F(Streams, HelpersHaveThoseOfTheCaller) {
  const c10::Stream before = bridge::make_current(stream(1, 7));
  bridge::make_current(stream(2, 9));
  const std::vector<at::Tensor> tensors = {tensor(1), at::Tensor(), at::zeros({3}), tensor(2),
                                           tensor(1)};
  EXPECT_EQ(seen(tensors, 1), std::set<c10::StreamId>{7});
  EXPECT_EQ(seen(tensors, 2), std::set<c10::StreamId>{9});
  EXPECT_EQ(bridge::current_stream(Device(c10::kPrivateUse1, 1)).id(), 7);
  bridge::make_current(before);
}

TEST_F(Streams, AThreadHasItsOwnAgain) {
  const c10::Stream before = bridge::make_current(stream(1, 7));
  const bridge::StreamsOf streams({tensor(1)});
  std::thread([&] {
    bridge::make_current(stream(1, 3));
    {
      const bridge::StreamsOf::Current current(streams);
      EXPECT_EQ(bridge::current_stream(Device(c10::kPrivateUse1, 1)).id(), 7);
    }
    EXPECT_EQ(bridge::current_stream(Device(c10::kPrivateUse1, 1)).id(), 3);
  }).join();
  bridge::make_current(before);
}

}  // namespace
}  // namespace neap::weights

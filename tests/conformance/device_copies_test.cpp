// Copies, fills and their order, on every device.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "device_conformance.h"

namespace neap::device {
namespace {

TEST_P(DeviceConformance, FillWritesEveryByteAndNoOther) {
  const Address at = reserve(3);
  const PageId page = create(3);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_ * 3));
  auto bytes = pattern(page_ * 3, 5);
  write(at, bytes);
  for (const std::uint8_t value : {std::uint8_t{0xa5}, std::uint8_t{0}}) {
    const std::size_t from = page_.count() - 17;
    const std::size_t size = page_.count() + 40;
    ASSERT_OK(device().fill(at + from, Bytes(size), value));
    std::memset(bytes.data() + from, value, size);
    if (real()) {
      EXPECT_EQ(read(at, page_ * 3), bytes);
    }
  }
  ASSERT_OK(device().unmap(at, page_ * 3));
  EXPECT_FALSE(device().fill(at, page_, 0).ok() && device().info().kind != Kind::kCuda);
  ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_ * 3));
}

TEST_P(DeviceConformance, QueueCopiesBothWaysInOrder) {
  constexpr std::uint64_t kPages = 8;
  const Address at = reserve(2 * kPages);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const PageId page = create(kPages);
    ASSERT_OK(device().map(at + (page_ * (i * kPages)).count(), page));
    ASSERT_OK(device().release(page));
  }
  ASSERT_OK(device().set_access(at, page_ * 2 * kPages));
  auto queue = device().make_copy_queue();
  ASSERT_TRUE(queue.ok());
  auto in = pattern(page_ * kPages, 11);
  std::vector<std::uint8_t> out(in.size());
  for (int round = 0; round < 3; ++round) {
    std::uint64_t mark = 0;
    for (std::uint64_t i = 0; i < kPages; ++i) {
      const std::size_t offset = (page_ * i).count();
      ASSERT_OK((*queue)->to_device({at + offset, in.data() + offset, page_}));
      auto made = (*queue)->mark_to_device();
      ASSERT_TRUE(made.ok());
      mark = *made;
    }
    ASSERT_OK((*queue)->wait(mark));
    for (std::uint64_t i = 0; i < kPages; ++i) {
      const std::size_t offset = (page_ * i).count();
      ASSERT_OK((*queue)->to_host({at + offset, out.data() + offset, page_}));
    }
    auto done = (*queue)->mark_to_host();
    ASSERT_TRUE(done.ok());
    ASSERT_OK((*queue)->wait(*done));
    if (real()) {
      EXPECT_EQ(out, in);
    }
    // Copies are timed by marks around them, of either direction.
    const auto begin = (*queue)->mark_to_host();
    ASSERT_TRUE(begin.ok());
    ASSERT_OK((*queue)->to_host({at, out.data(), page_ * kPages}));
    const auto end = (*queue)->mark_to_host();
    ASSERT_TRUE(end.ok());
    const auto seconds = (*queue)->seconds_between(*begin, *end);
    ASSERT_TRUE(seconds.ok()) << seconds.status().message();
    EXPECT_GE(*seconds, 0);
    EXPECT_LT(*seconds, 60);
    if (device().info().kind != Kind::kSim) {
      EXPECT_GT(*seconds, 0);
    }
    ASSERT_OK((*queue)->drain());
    std::rotate(in.begin(), in.begin() + 1, in.end());
  }
  queue->reset();
  ASSERT_OK(device().unmap(at, page_ * 2 * kPages));
  ASSERT_OK(device().unreserve(at, page_ * 2 * kPages));
}

TEST_P(DeviceConformance, CopiesAreOrderedWithAStream) {
  constexpr std::uint64_t kPages = 16;
  const Address at = reserve(kPages);
  const PageId page = create(kPages);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_ * kPages));
  auto queue = device().make_copy_queue();
  ASSERT_TRUE(queue.ok());
  const auto in = pattern(page_ * kPages, 17);
  std::vector<std::uint8_t> out(in.size());
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(device().fill(at, page_ * kPages, 0));
    ASSERT_OK((*queue)->begin_after(StreamId::kDefault));
    ASSERT_OK((*queue)->to_device({at, const_cast<std::uint8_t*>(in.data()), page_ * kPages}));
    const auto mark = (*queue)->mark_to_device();
    ASSERT_TRUE(mark.ok());
    ASSERT_OK((*queue)->hold_stream(StreamId::kDefault, *mark, 2));
    ASSERT_OK(
        device().synchronize(StreamId::kDefault));  // waits for the copies, which it is behind
    const Copy back{at, out.data(), page_ * kPages};
    ASSERT_OK(device().copy_to_host({&back, 1}));
    if (real()) {
      EXPECT_EQ(out, in);
    }
    ASSERT_OK((*queue)->wait(*mark));
    ASSERT_OK((*queue)->hold_stream(StreamId::kDefault, *mark, 2));  // done: nothing to wait for
    const auto held = (*queue)->take_held_seconds();
    ASSERT_TRUE(held.ok()) << held.status().message();
    if (device().info().kind != Kind::kSim) {
      ASSERT_EQ(held->size(), 3U);
      EXPECT_EQ((*held)[0], 0);
      EXPECT_GT((*held)[2], 0);
      EXPECT_LT((*held)[2], 60);
    }
  }
  queue->reset();
  ASSERT_OK(device().unmap(at, page_ * kPages));
  ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_ * kPages));
}

TEST_P(DeviceConformance, CopiesOfOneDirectionAreOrderedWithTheOther) {
  constexpr std::uint64_t kPages = 64;
  const Address at = reserve(kPages);
  const PageId page = create(kPages);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_ * kPages));
  auto queue = device().make_copy_queue();
  ASSERT_TRUE(queue.ok());
  const auto first = pattern(page_ * kPages, 23);
  const auto second = pattern(page_ * kPages, 24);
  std::vector<std::uint8_t> out(first.size());
  const auto bring = [&](const std::vector<std::uint8_t>& from) {
    return (*queue)->to_device({at, const_cast<std::uint8_t*>(from.data()), page_ * kPages});
  };
  for (int round = 0; round < 3; ++round) {
    // In, out, and in again over what goes out.
    ASSERT_OK(bring(first));
    const auto came = (*queue)->mark_to_device();
    ASSERT_TRUE(came.ok());
    ASSERT_OK((*queue)->hold_other_direction(*came));
    ASSERT_OK((*queue)->to_host({at, out.data(), page_ * kPages}));
    const auto left = (*queue)->mark_to_host();
    ASSERT_TRUE(left.ok());
    ASSERT_OK((*queue)->hold_other_direction(*left));
    ASSERT_OK(bring(second));
    ASSERT_OK((*queue)->drain());
    if (real()) {
      EXPECT_EQ(out, first);
      const Copy back{at, out.data(), page_ * kPages};
      ASSERT_OK(device().copy_to_host({&back, 1}));
      EXPECT_EQ(out, second);
    }
    ASSERT_OK((*queue)->hold_other_direction(*left));  // done: nothing to wait for
  }
  queue->reset();
  ASSERT_OK(device().unmap(at, page_ * kPages));
  ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_ * kPages));
}

TEST_P(DeviceConformance, DrainTellsOfACopyThatFailed) {
  if (device().info().kind != Kind::kCuda) return;  // the others' copies do not fail
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto fail =
      driver == nullptr
          ? nullptr
          : reinterpret_cast<void (*)(const char*, int, int)>(::dlsym(driver, "standin_fail"));
  if (fail == nullptr) return;  // a real driver cannot be told to fail
  auto queue = device().make_copy_queue();
  ASSERT_TRUE(queue.ok());
  constexpr int kUnknownError = 999;
  for (const int stream : {1, 2}) {
    fail("cuStreamSynchronize", stream, kUnknownError);
    const Status drained = (*queue)->drain();
    EXPECT_FALSE(drained.ok()) << stream;
    EXPECT_THAT(drained.message(), testing::HasSubstr("finishing copies"));
    ASSERT_OK((*queue)->drain());
  }
}

TEST_P(DeviceConformance, HostMemoryRegistersOnce) {
  std::vector<std::uint8_t> storage(1 << 20);
  void* at = storage.data();
  const std::size_t size = storage.size();
  ASSERT_OK(device().register_host(at, Bytes(size)));
  EXPECT_FALSE(device().register_host(at, Bytes(size)).ok());
  ASSERT_OK(device().unregister_host(at));
  EXPECT_FALSE(device().unregister_host(at).ok());
}

}  // namespace
}  // namespace neap::device

// What every device must do, run over each of them. Contents are looked at through copies, so the
// same text serves a GPU; a device without memory behind it (sim) is asked everything else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "conformance/devices.h"
#include "device_conformance.h"

namespace neap::device {
namespace {

TEST_P(DeviceConformance, ReservationsAreAlignedDisjointAndReturnable) {
  const Address first = reserve(3);
  auto second = device().reserve(page_ * 2, page_ * 8);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first % page_.count(), 0u);
  EXPECT_EQ(*second % (page_ * 8).count(), 0u);
  EXPECT_TRUE(*second >= first + (page_ * 3).count() || first >= *second + (page_ * 2).count());
  EXPECT_FALSE(device().reserve(page_ + Bytes(1), Bytes(0)).ok());
  EXPECT_FALSE(device().reserve(Bytes(0), Bytes(0)).ok());
  EXPECT_FALSE(device().reserve(page_, Bytes(3)).ok());
  EXPECT_FALSE(device().unreserve(first, page_).ok()) << "only whole ranges";
  ASSERT_OK(device().unreserve(first, page_ * 3));
  EXPECT_EQ(device().unreserve(first, page_ * 3).code(), ErrorCode::kNotFound);
  ASSERT_OK(device().unreserve(*second, page_ * 2));
}

TEST_P(DeviceConformance, ContentsSurviveUnmapAndMapElsewhere) {
  const Address at = reserve(4);
  const PageId page = create(2);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_ * 2));
  const auto bytes = pattern(page_ * 2, 7);
  write(at, bytes);
  ASSERT_OK(device().synchronize());
  ASSERT_OK(device().unmap(at, page_ * 2));
  ASSERT_OK(device().map(at + (page_ * 2).count(), page));
  ASSERT_OK(device().set_access(at + (page_ * 2).count(), page_ * 2));
  if (real()) {
    EXPECT_EQ(read(at + (page_ * 2).count(), page_ * 2), bytes);
  }
  ASSERT_OK(device().unmap(at + (page_ * 2).count(), page_ * 2));
  ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_ * 4));
}

TEST_P(DeviceConformance, GrantsPeersThatExist) {
  const Address at = reserve(2);
  const PageId page = create(2);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_ * 2));
  const int self = device().info().ordinal;
  ASSERT_OK(device().grant_peer(self));
  ASSERT_OK(device().grant_peer(self));
  EXPECT_EQ(device().grant_peer(-1).code(), ErrorCode::kInvalidArgument);
  // A device that is not there is refused by those that can tell; contents and access stay.
  if (device().info().kind == Kind::kCuda) {
    EXPECT_EQ(device().grant_peer(1000).code(), ErrorCode::kInvalidArgument);
  }
  const auto bytes = pattern(page_ * 2, 11);
  write(at, bytes);
  if (real()) {
    EXPECT_EQ(read(at, page_ * 2), bytes);
  }
  ASSERT_OK(device().unmap(at, page_ * 2));
  ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_ * 2));
}

TEST_P(DeviceConformance, TwoMapsOfAPageAlias) {
  const Address at = reserve(2);
  const PageId page = create(1);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().map(at + page_.count(), page));
  ASSERT_OK(device().set_access(at, page_ * 2));
  const auto bytes = pattern(page_, 3);
  write(at, bytes);
  if (real()) {
    EXPECT_EQ(read(at + page_.count(), page_), bytes);
  }
  ASSERT_OK(device().release(page));
  if (real()) {
    EXPECT_EQ(read(at, page_), bytes) << "released, but mapped still";
  }
  ASSERT_OK(device().unmap(at, page_));
  if (real()) {
    EXPECT_EQ(read(at + page_.count(), page_), bytes);
  }
  ASSERT_OK(device().unmap(at + page_.count(), page_));
  ASSERT_OK(device().unreserve(at, page_ * 2));
}

TEST_P(DeviceConformance, OneUnmapAndOneAccessServeManyPages) {
  constexpr std::uint64_t kPages = 16;
  const Address at = reserve(kPages);
  std::vector<PageId> pages;
  for (std::uint64_t i = 0; i < kPages; ++i) {
    pages.push_back(create(1));
    ASSERT_OK(device().map(at + (page_ * i).count(), pages.back()));
  }
  ASSERT_OK(device().set_access(at, page_ * kPages));
  const auto bytes = pattern(page_ * kPages, 9);
  write(at, bytes);
  if (real()) {
    EXPECT_EQ(read(at, page_ * kPages), bytes);
  }
  ASSERT_OK(device().unmap(at, page_ * kPages));
  // The same pages in the other order: contents follow the page.
  for (std::uint64_t i = 0; i < kPages; ++i)
    ASSERT_OK(device().map(at + (page_ * i).count(), pages[kPages - 1 - i]));
  ASSERT_OK(device().set_access(at, page_ * kPages));
  if (real()) {
    const auto last = read(at, page_);
    EXPECT_TRUE(
        std::equal(last.begin(), last.end(), bytes.end() - static_cast<long>(page_.count())));
  }
  ASSERT_OK(device().unmap(at, page_ * kPages));
  for (const PageId page : pages) ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_ * kPages));
}

TEST_P(DeviceConformance, MisuseFailsAndChangesNothing) {
  const Address at = reserve(4);
  const PageId page = create(2);
  EXPECT_FALSE(device().create(Bytes(0)).ok());
  EXPECT_FALSE(device().create(page_ + Bytes(4096)).ok());
  EXPECT_FALSE(device().map(at + (page_ * 3).count(), page).ok()) << "reaches over the end";
  EXPECT_FALSE(device().map(at + 4096, page).ok()) << "not on the granularity";
  ASSERT_OK(device().map(at, page));
  const PageId other = create(2);
  EXPECT_FALSE(device().map(at + page_.count(), other).ok()) << "overlaps";
  EXPECT_FALSE(device().unmap(at, page_).ok()) << "half a page";
  EXPECT_FALSE(device().unmap(at, page_ * 3).ok()) << "beyond what is mapped";
  EXPECT_FALSE(device().set_access(at, page_ * 3).ok());
  EXPECT_EQ(device().unreserve(at, page_ * 4).code(), ErrorCode::kBusy);
  ASSERT_OK(device().set_access(at, page_ * 2));
  write(at, pattern(page_, 1));
  ASSERT_OK(device().unmap(at, page_ * 2));
  EXPECT_FALSE(device().unmap(at, page_ * 2).ok());
  ASSERT_OK(device().release(page));
  EXPECT_FALSE(device().release(page).ok());
  EXPECT_FALSE(device().map(at, page).ok()) << "released";
  ASSERT_OK(device().release(other));
  ASSERT_OK(device().unreserve(at, page_ * 4));
}

TEST_P(DeviceConformance, CapacityRunsOutCleanlyAndComesBack) {
  if (device().info().kind == Kind::kCuda) {
    auto page = device().create(round_up(device().info().capacity + 1_GiB, page_));
    ASSERT_FALSE(page.ok());
    EXPECT_EQ(page.status().code(), ErrorCode::kOutOfDeviceMemory) << page.status().message();
    EXPECT_TRUE(device().create(page_).ok());
    return;
  }
  const auto before = device().memory();
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before->free, device().info().capacity);
  const PageId all = create(device().info().capacity / page_);
  auto more = device().create(page_);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code(), ErrorCode::kOutOfDeviceMemory);
  ASSERT_NE(more.status().shortage(), nullptr);
  EXPECT_EQ(more.status().shortage()->need, page_);
  EXPECT_TRUE(more.status().shortage()->free.is_zero());
  const Address at = reserve(device().info().capacity / page_);
  ASSERT_OK(device().map(at, all));
  ASSERT_OK(device().release(all));
  EXPECT_FALSE(device().create(page_).ok()) << "released, but mapped: the memory is still used";
  ASSERT_OK(device().unmap(at, device().info().capacity));
  EXPECT_TRUE(device().create(page_).ok());
}

TEST_P(DeviceConformance, AnUnmappedAddressHoldsNothing) {
  if (!real() || device().info().kind != Kind::kHost) return;
  const Address at = reserve(1);
  const PageId page = create(1);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_));
  write(at, pattern(page_, 31));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // The kernel reads the address: EFAULT where nothing can be read.
  const auto readable = [&] {
    const auto* const byte = reinterpret_cast<const std::uint8_t*>(at);  // NOLINT
    return ::write(ends[1], byte, 1) == 1;
  };
  EXPECT_TRUE(readable());
  ASSERT_OK(device().unmap(at, page_));
  EXPECT_FALSE(readable());
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_OK(device().release(page));
  ASSERT_OK(device().unreserve(at, page_));
}

TEST_P(DeviceConformance, ExportedPagesOutliveTheirOwner) {
  const PageId page = create(2);
  auto descriptor = device().export_page(page);
  if (!device().info().exportable) {
    EXPECT_EQ(descriptor.status().code(), ErrorCode::kUnsupported);
    return;
  }
  ASSERT_TRUE(descriptor.ok()) << descriptor.status().message();
  const Address at = reserve(4);
  ASSERT_OK(device().map(at, page));
  ASSERT_OK(device().set_access(at, page_ * 2));
  const auto bytes = pattern(page_ * 2, 21);
  write(at, bytes);
  auto imported = device().import_page(*descriptor, page_ * 2);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  ::close(*descriptor);
  const Address second = at + (page_ * 2).count();
  ASSERT_OK(device().map(second, *imported));
  ASSERT_OK(device().set_access(second, page_ * 2));
  EXPECT_EQ(read(second, page_ * 2), bytes);
  ASSERT_OK(device().unmap(at, page_ * 2));
  ASSERT_OK(device().release(page));
  EXPECT_EQ(read(second, page_ * 2), bytes);
  ASSERT_OK(device().unmap(second, page_ * 2));
  ASSERT_OK(device().release(*imported));
  ASSERT_OK(device().unreserve(at, page_ * 4));
  EXPECT_FALSE(device().import_page(-1, page_).ok());
}

TEST_P(DeviceConformance, ManyThreads) {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto bytes = pattern(page_, static_cast<std::uint8_t>(t));
      for (int i = 0; i < 25; ++i) {
        auto at = device().reserve(page_ * 2, Bytes(0));
        auto page = device().create(page_);
        if (!at.ok() || !page.ok()) {
          ++failures;
          return;
        }
        bool ok = device().map(*at, *page).ok() && device().set_access(*at, page_).ok();
        const Copy put{*at, const_cast<std::uint8_t*>(bytes.data()), page_};
        std::vector<std::uint8_t> back(bytes.size());
        const Copy get{*at, back.data(), page_};
        ok = ok && device().copy_to_device({&put, 1}).ok() && device().copy_to_host({&get, 1}).ok();
        ok = ok && (!real() || back == bytes);
        ok = ok && device().unmap(*at, page_).ok() && device().release(*page).ok() &&
             device().unreserve(*at, page_ * 2).ok();
        if (!ok) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(Every, DeviceConformance,
                         testing::Values(host_maker("Host2MiB", 2_MiB),
                                         host_maker("Host64KiB", 64_KiB), sim_maker(),
                                         with_faults(host_maker("", 64_KiB), "FaultPassThrough"),
                                         cuda_maker(), with_faults(cuda_maker(), "FaultOverCuda")),
                         [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace neap::device

// What every device with a ledger promises when its driver refuses: a call that fails has changed
// nothing.
#include "device/ledger_device.h"

#include <gtest/gtest.h>

#include "device/host/host_device.h"

namespace neap::device {
namespace {

/// Acts that do nothing, or refuse when told.
class Stubborn final : public LedgerDevice {
 public:
  Stubborn() : LedgerDevice(make_info()) {}
  bool refuses = false;
  int dropped = 0;

  Status copy_to_host(std::span<const Copy> copies) override { return check_copies(copies); }
  Status copy_to_device(std::span<const Copy> copies) override { return check_copies(copies); }
  Status fill(Address, Bytes, std::uint8_t) override { return {}; }
  Result<std::unique_ptr<CopyQueue>> make_copy_queue() override { return answer(); }
  Status synchronize() override { return {}; }
  Status synchronize(StreamId) override { return {}; }

 private:
  static DeviceInfo make_info() {
    DeviceInfo info;
    info.granularity = 2_MiB;
    info.capacity = 64_MiB;
    return info;
  }
  Status answer() const { return refuses ? Status(ErrorCode::kDriver, "refused") : Status(); }
  Result<Address> find_addresses(Bytes size, Bytes) override {
    NEAP_TRY(answer());
    next_ += size.count();
    return next_ - size.count();
  }
  Status drop_addresses(Address, Bytes) override { return answer(); }
  Result<std::uint64_t> make_page(Bytes) override { return std::uint64_t{7}; }
  Status drop_page(std::uint64_t) override {
    NEAP_TRY(answer());
    ++dropped;
    return {};
  }
  Status bind(Address, Bytes, std::uint64_t) override { return answer(); }
  Status open(Address, Bytes) override { return answer(); }
  Status unbind(Address, Bytes) override { return {}; }
  Status pin(void*, Bytes) override { return answer(); }
  Status unpin(void*) override { return answer(); }
  Result<int> give_out(std::uint64_t) override { return 0; }
  Result<std::uint64_t> take_in(int, Bytes) override { return std::uint64_t{8}; }

  Address next_ = 1ull << 40;
};

TEST(LedgerDevice, APageThatTheDriverKeepsStaysItsOwners) {
  Stubborn device;
  const PageId page = *device.create(2_MiB);
  const auto usage = device.usage();
  device.refuses = true;
  EXPECT_EQ(device.release(page).code(), ErrorCode::kDriver);
  EXPECT_EQ(device.usage(), usage);
  device.refuses = false;
  const Address at = *device.reserve(2_MiB, Bytes(0));
  EXPECT_TRUE(device.map(at, page).ok()) << "it serves on";
  EXPECT_TRUE(device.release(page).ok());
  EXPECT_EQ(device.dropped, 0) << "the map still holds it";
  EXPECT_TRUE(device.unmap(at, 2_MiB).ok());
  EXPECT_EQ(device.dropped, 1);
  EXPECT_EQ(device.usage().pages, 0u);
}

TEST(LedgerDevice, AnUnmapThatWasDoneIsNoFailure) {
  Stubborn device;
  const PageId page = *device.create(2_MiB);
  const Address at = *device.reserve(2_MiB, Bytes(0));
  ASSERT_TRUE(device.map(at, page).ok());
  ASSERT_TRUE(device.release(page).ok());
  device.refuses = true;
  EXPECT_TRUE(device.unmap(at, 2_MiB).ok()) << "nothing is mapped any more";
  EXPECT_EQ(device.usage().maps, 0u);
}

TEST(LedgerDevice, HostileSizesDoNotWrap) {
  auto device = std::move(make_host_device({})).value();
  const auto usage = device->usage();
  for (const Bytes size :
       {Bytes(~0ull), Bytes(~0ull << 21), Bytes(1ull << 63), Bytes(3ull << 62)}) {
    EXPECT_FALSE(device->reserve(size, Bytes(0)).ok());
    EXPECT_FALSE(device->reserve(size, Bytes(1ull << 63)).ok());
    EXPECT_FALSE(device->create(size).ok());
  }
  EXPECT_EQ(device->reserve(2_MiB, Bytes(1ull << 63)).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(device->usage(), usage);

  const Address at = *device->reserve(4_MiB, Bytes(0));
  const PageId page = *device->create(2_MiB);
  ASSERT_TRUE(device->map(at, page).ok());
  ASSERT_TRUE(device->set_access(at, 2_MiB).ok());
  std::uint64_t word = 0;
  for (const Bytes size : {Bytes(~0ull), Bytes(0ull - at), Bytes(0ull - at - 1), 2_MiB + 1_B}) {
    const Copy copy{at, &word, size};
    EXPECT_FALSE(device->copy_to_host({&copy, 1}).ok());
    EXPECT_FALSE(device->copy_to_device({&copy, 1}).ok());
    EXPECT_FALSE(device->fill(at, size, 1).ok());
    EXPECT_FALSE(device->unmap(at, size).ok());
    EXPECT_FALSE(device->set_access(at, size).ok());
    EXPECT_FALSE(device->unreserve(at, size).ok());
  }
  EXPECT_EQ(device->usage().maps, 1u);
}

}  // namespace
}  // namespace neap::device

#include "base/status.h"

#include <gtest/gtest.h>

namespace neap {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return Status(ErrorCode::kInvalidArgument, "odd");
  return n / 2;
}
Result<int> quarter(int n) {
  NEAP_TRY_ASSIGN(const int h, half(n));
  NEAP_TRY_ASSIGN(const int q, half(h));
  return q;
}

TEST(Status, SuccessIsCheapAndSaysOk) {
  EXPECT_EQ(sizeof(Status), 2 * sizeof(void*));
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), ErrorCode::kOk);
}

TEST(Status, CarriesContextChain) {
  const Status s =
      Status(ErrorCode::kIo, "disk full").with_context("saving").with_context("training");
  EXPECT_EQ(s.message(), "disk full - while saving - while training");
  EXPECT_EQ(s.code(), ErrorCode::kIo);
}

TEST(Status, OutOfMemoryNamesNeedFreeAndHolders) {
  const Status s =
      Status::out_of_memory("Resuming tag \"kv\"", {2_GiB, 1_GiB, 8_GiB, {{"weights", 7_GiB}}});
  EXPECT_EQ(s.message(),
            "Resuming tag \"kv\" needs 2 GiB but 1 GiB of 8 GiB is free; held by weights 7 GiB");
  ASSERT_NE(s.shortage(), nullptr);
  EXPECT_EQ(s.shortage()->need, 2_GiB);
  const Status longer = Status(s).with_context("waking up");
  ASSERT_NE(longer.shortage(), nullptr) << "context must not lose the numbers";
}

TEST(Status, TheDriversNumberIsZeroUnlessTheDriverFailed) {
  EXPECT_EQ(Status().native_code(), 0);
  EXPECT_EQ(Status(ErrorCode::kIo, "disk").native_code(), 0);
  EXPECT_EQ(Status::driver(ErrorCode::kDriver, "unmap", 700).native_code(), 700);
}

TEST(Result, PropagatesWithMacros) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_THROW((void)value_or_throw(quarter(1)), Error);
}

}  // namespace
}  // namespace neap

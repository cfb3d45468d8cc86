#include "bridge/phase_accounts.h"

#include <gmock/gmock.h>

#include "arena/arena.h"
#include "unit/bridge/shadow.h"

namespace neap::bridge {
namespace {

using ::testing::HasSubstr;

class RefusedRequest : public testing::Test {
 protected:
  std::string message(Bytes ceiling) {
    const auto device = host_device(64_MiB);
    const auto arena = value_or_throw(arena::Arena::make(*device));
    const MemoryPlan plan;
    ScheduleExecutor executor(*arena, plan, device::StreamId::kDefault, [] {});
    PhaseAccounts accounts(ceiling, executor, plan);
    PhaseMeasurement m;
    m.persistent = 100_MiB;
    m.transient_reserved = 24_MiB;
    accounts.note_oom(m, 222_MiB, {.free = 40_MiB, .total = 140_MiB});
    return std::string(accounts.last_oom().message());
  }
};

TEST_F(RefusedRequest, WithoutALimitItsFreeMemoryIsWhatTheTemporariesLeft) {
  EXPECT_THAT(message(Bytes()), HasSubstr("needs 222 MiB but 16 MiB of 140 MiB is free"));
}

TEST_F(RefusedRequest, ALimitCountsTagsAndTemporaries) {
  EXPECT_THAT(message(130_MiB), HasSubstr("needs 222 MiB but 6 MiB of 130 MiB is free"));
}

}  // namespace
}  // namespace neap::bridge

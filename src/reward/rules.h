// The rules: functions of a response's text and its row.
//
// Threads   const functions from any thread.
//
// Failure   kInvalidArgument for a wrong pattern.
#pragma once

#include <memory>

#include "reward/reward.h"

namespace neap::reward {

[[nodiscard]] Result<std::unique_ptr<RewardFunction>> make_rule(
    const spec::RewardFunctionConfig& config, const Setting& setting);

}  // namespace neap::reward

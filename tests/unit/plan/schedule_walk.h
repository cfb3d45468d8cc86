// A schedule is done move by move.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/plan/small_plans.h"

namespace neap::plan {

// The steady cycle, step by step: does what the moves say and checks what may be relied on. Loops run
// all their rounds.
struct Walk {
  Bytes link;
  bool closes = true, fits = true, complete = true;
};
inline Walk walk(const MemoryPlan& plan) {
  Walk w;
  const std::size_t tags = plan.tags.size();
  std::vector<bool> there = plan.schedule.back().resident;
  std::vector<bool> host_copy(tags, false);
  for (int round = 0; round < 3; ++round) {
    w.link = Bytes();
    for (const auto& [p, again] : visits_of(plan)) {
      const auto held = [&] {
        Bytes sum;
        for (std::size_t t = 0; t < tags; ++t) sum += there[t] ? plan.tags[t].bytes : Bytes();
        return sum;
      };
      for (const Move& move : again ? plan.schedule[p].again : plan.schedule[p].moves) {
        const auto t = static_cast<std::size_t>(
            std::find_if(plan.tags.begin(), plan.tags.end(),
                         [&](const TagPlan& x) { return x.id == move.tag; }) -
            plan.tags.begin());
        const bool pause = move.kind == Move::Kind::kPause;
        EXPECT_EQ(there[t], pause) << to_string(move.tag);
        there[t] = !pause;
        if (move.copies) w.link += move.bytes;
        if (pause && move.policy == arena::Policy::kHost) {
          // An uncopied pause relies on an earlier copy; in the first round there may be none yet.
          if (move.copies) host_copy[t] = true;
          w.complete = w.complete && (round == 0 || host_copy[t] ||
                                      std::count(plan.tags[t].write.begin(),
                                                 plan.tags[t].write.end(), true) == 0);
        }
        if (!plan.capacity.is_zero()) w.fits = w.fits && held() <= plan.capacity;
      }
      const Bytes peak = held() + plan.phases[p].transient;
      w.fits = w.fits && there == plan.schedule[p].resident && peak == plan.schedule[p].peak &&
               (plan.capacity.is_zero() || plan.schedule[p].peak <= plan.capacity);
      for (std::size_t t = 0; t < tags; ++t) {
        const Need need = plan.tags[t].need[p];
        w.complete = w.complete && (need != Need::kNeed || there[t]);
        if (plan.tags[t].write[p]) host_copy[t] = false;
      }
    }
    w.closes = w.closes && there == plan.schedule.back().resident;
  }
  return w;
}

}  // namespace neap::plan

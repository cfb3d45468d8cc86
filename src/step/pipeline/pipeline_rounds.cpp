#include "step/pipeline/pipeline_rounds.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace neap::step {
namespace {

using Kind = PipelineAction::Kind;

class Rounds {
 public:
  Rounds(const PipelineShape& shape, const PipelineActions& actions,
         const std::function<bool(std::int64_t, std::int64_t)>& alike)
      : actions_(actions),
        alike_(alike),
        period_(shape.chunks == 1 ? 1 : static_cast<std::size_t>(shape.parts())) {
    // Each begins with a forward, or at the start of the schedule.
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i == 0 || actions[i].kind == Kind::kForward) begins_.push_back(i);
      seen_.insert(key_of(actions[i]));
    }
    begins_.push_back(actions.size());
  }

  [[nodiscard]] std::vector<PipelineRound> all() const {
    std::vector<PipelineRound> out;
    for (std::size_t turn = 0; turn + 1 < begins_.size();) {
      PipelineRound round = round_at(turn, 1);
      if (turn + period_ < begins_.size()) {
        const PipelineRound longer = round_at(turn, period_);
        std::int64_t times = 1;
        for (std::size_t next = turn + period_; follows(longer, next); next += period_) ++times;
        if (times > 1) {
          round = longer;
          round.times = times;
        }
      }
      turn += round.times > 1 ? period_ * static_cast<std::size_t>(round.times) : 1;
      out.push_back(round);
    }
    return out;
  }

 private:
  using Key = std::pair<Kind, std::int64_t>;
  static Key key_of(const PipelineAction& action) { return {action.kind, action.chunk}; }

  [[nodiscard]] PipelineRound round_at(std::size_t turn, std::size_t turns) const {
    return {begins_[turn], begins_[turn + turns] - begins_[turn], 1};
  }
  [[nodiscard]] bool follows(const PipelineRound& round, std::size_t turn) const {
    if (turn + period_ >= begins_.size()) return false;
    const PipelineRound next = round_at(turn, period_);
    if (next.actions != round.actions || !is_steady(next)) return false;
    for (std::size_t i = 0; i < round.actions; ++i)
      if (!does_the_same(round, next, i)) return false;
    return true;
  }
  [[nodiscard]] bool does_the_same(const PipelineRound& a, const PipelineRound& b,
                                   std::size_t i) const {
    const PipelineAction& one = actions_[a.first + i];
    const PipelineAction& two = actions_[b.first + i];
    const std::int64_t later = actions_[b.first].micro_batch - actions_[a.first].micro_batch;
    return one.kind == two.kind && one.chunk == two.chunk && one.peer == two.peer &&
           two.micro_batch - one.micro_batch == later && alike_(one.micro_batch, two.micro_batch);
  }
  // Whether everything received is used, and everything kept is freed.
  [[nodiscard]] bool is_steady(const PipelineRound& round) const {
    std::map<Key, std::int64_t> counts;
    for (std::size_t i = round.first; i < round.first + round.actions; ++i)
      ++counts[key_of(actions_[i])];
    const auto same = [&](Kind kind, Kind with) {
      return std::all_of(seen_.begin(), seen_.end(), [&](const Key& key) {
        return key.first != kind || !seen_.contains({with, key.second}) ||
               counts[key] == counts[{with, key.second}];
      });
    };
    return same(Kind::kForward, Kind::kBackward) && same(Kind::kForward, Kind::kBackwardInput) &&
           same(Kind::kForward, Kind::kBackwardWeights) &&
           same(Kind::kReceiveHidden, Kind::kForward) &&
           same(Kind::kReceiveGradients, Kind::kBackward) &&
           same(Kind::kReceiveGradients, Kind::kBackwardInput);
  }

  const PipelineActions& actions_;
  const std::function<bool(std::int64_t, std::int64_t)>& alike_;
  std::size_t period_;
  std::vector<std::size_t> begins_;  // starts of turns, and the end of the last one
  std::set<Key> seen_;
};

}  // namespace

std::vector<PipelineRound> rounds_of(const PipelineShape& shape, const PipelineActions& actions,
                                     const std::function<bool(std::int64_t, std::int64_t)>& alike) {
  return Rounds(shape, actions, alike).all();
}

}  // namespace neap::step

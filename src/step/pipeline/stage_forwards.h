// A stage's part of an inference phase: forward of groups of micro-batches through its chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "step/model/batch.h"
#include "step/pipeline/pipeline_rounds.h"
#include "step/pipeline/stage_transfers.h"

namespace neap::step {

/// Calls visit(group, batches, hidden) for each group, on the last stage.
template <class Ops, class Visit>
class StageForwards {
  using T = typename Ops::Tensor;
  using Kind = PipelineAction::Kind;

 public:
  /// All arguments must outlive it.
  StageForwards(Ops& ops, const Weights<T>& w, const Sequences<T>& all, const Visit& visit)
      : ops_(ops), w_(w), all_(all), visit_(visit), received_(chunks(w)) {}

  /// Micro-batches that a plan counts only for memory fill a pipeline each.
  void run(const std::vector<MicroBatch>& cuts, std::int64_t together) {
    const std::size_t size = group_size(cuts, together);
    std::vector<MicroBatch> counted;
    for (const MicroBatch& micro : cuts)
      if (!micro.aside) counted.push_back(micro);
    std::vector<Group> groups;
    for (Group rest(counted); !rest.empty(); rest = rest.subspan(groups.back().size()))
      groups.push_back(rest.first(std::min(size, rest.size())));
    // Ranks that shard the stage (ZeRO-3) join each other's forwards without rows.
    groups.resize(groups.size() + static_cast<std::size_t>(further_passes(w_, std::ssize(groups))));
    run(groups);
    const auto stages = static_cast<std::size_t>(w_.architecture.pipeline.stages);
    for (const MicroBatch& micro : cuts) {
      if (!micro.aside) continue;
      const std::vector<MicroBatch> same(size, micro);
      ops_.aside([&] { run(std::vector<Group>(stages, Group(same))); });
    }
  }

 private:
  void run(const std::vector<Group>& groups) {
    if (groups.empty()) return;
    const spec::PipelineStage& stage = w_.architecture.pipeline;
    if (stage.chunks == 1) expect_passes(w_, Sweep::kForward, std::ssize(groups));
    const PipelineShape shape = shape_of(stage, std::ssize(groups));
    const PipelineActions actions =
        std::move(pipeline_inference(shape)[static_cast<std::size_t>(stage.stage)]);
    const auto alike = [&](std::int64_t a, std::int64_t b) {
      const Group one = groups[static_cast<std::size_t>(a)],
                  two = groups[static_cast<std::size_t>(b)];
      return std::equal(
          one.begin(), one.end(), two.begin(), two.end(),
          [](const MicroBatch& x, const MicroBatch& y) { return x.count == y.count; });
    };
    for (const PipelineRound& round : rounds_of(shape, actions, alike)) {
      ops_.repeat(round.times, [&](std::int64_t i) {
        const std::size_t from = round.first + static_cast<std::size_t>(i) * round.actions;
        for (std::size_t a = from; a < from + round.actions; ++a)
          execute(actions[a], groups[static_cast<std::size_t>(actions[a].micro_batch)]);
      });
    }
  }

  [[nodiscard]] static std::size_t chunks(const Weights<T>& w) {
    return static_cast<std::size_t>(w.architecture.chunks());
  }

  [[nodiscard]] std::int64_t rows_in(const MicroBatch& micro) const {
    return rows_of(all_, micro.first, micro.count);
  }

  void execute(const PipelineAction& action, Group group) {
    if (action.kind == Kind::kForward) return forward(action, group);
    for (std::size_t b = 0; b < group.size(); ++b) {
      if (action.sends()) {
        send_hidden(ops_, w_, std::exchange(hidden_[b], T()), action.peer);
        continue;
      }
      received_[static_cast<std::size_t>(action.chunk)].push_back(
          receive_hidden(ops_, w_, rows_in(group[b]), action.peer));
    }
  }

  void forward(const PipelineAction& action, Group group) {
    const spec::BlockChunk chunk = w_.architecture.chunk(action.chunk);
    if (w_.architecture.chunks() > 1) expect_passes(w_, Sweep::kForward, 1, chunk);
    std::vector<DeviceBatch<Ops>> batches;
    std::vector<BatchTokens<T>> tokens;
    for (const MicroBatch& micro : group)
      tokens.push_back(
          batches.emplace_back(ops_, all_, micro.first, micro.count, loss_dtype(ops_, w_))
              .tokens());
    std::vector<T> inputs;
    std::deque<T>& received = received_[static_cast<std::size_t>(action.chunk)];
    for (std::size_t b = 0; b < group.size() && !chunk.embeds; ++b) {
      inputs.push_back(joined_hidden(ops_, w_, std::move(received.front()), rows_in(group[b])));
      received.pop_front();
    }
    hidden_ = step::forward(ops_, w_, tokens, chunk, std::move(inputs));
    tokens.clear();
    if (!chunk.has_head) return;
    visit_(group, batches, hidden_);
    hidden_.clear();
  }

  Ops& ops_;
  const Weights<T>& w_;
  const Sequences<T>& all_;
  const Visit& visit_;
  std::vector<std::deque<T>> received_;  // per chunk
  std::vector<T> hidden_;                // of the last forward, to be sent
};

}  // namespace neap::step

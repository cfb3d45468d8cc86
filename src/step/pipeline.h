// A stage's part of a mini-batch: its list of actions (step/pipeline_schedule.h) with tensors.
//
// Micro-batches pass a stage in order, so what waits is in queues: a plan leaves out rounds that are alike.
//
// Where the ranks that have a stage slice its weights or gradients, they meet in every action that computes. They have
// the same list of actions, and so do all stages: a rank with fewer micro-batches takes part in those of the others with
// empty ones, which no stage sends on. A collective stands in the one order of all transfers where its action does, so
// ranks cannot wait for each other in a circle.
//
// A table that is embedding and head has two copies, on the first and the last stage. The last one gives the
// sums of its heads to the first, which adds its embeddings and gives back all of them: the bits of one rank. Of sliced
// gradients ranks exchange their slices, which both stages cut alike.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "step/pipeline_schedule.h"
#include "step/training.h"

namespace neap::step {

/// A backend (step/runner.h) of a model that stages divide.
template <class B, class Objective>
class StageRun {
  using Ops = typename B::Ops;
  using T = typename Ops::Tensor;
  using Kind = PipelineAction::Kind;

 public:
  /// Everything outlives it. Gradients of the mini-batch `cuts` are added to those of the model. Micro-batches of no
  /// rows are others'.
  StageRun(B& b, const std::vector<MicroBatch>& cuts, const Objective& objective)
      : b_(b),
        ops_(b.ops()),
        w_(b.weights()),
        cuts_(cuts),
        objective_(objective),
        leaves_(w_.sink != nullptr && w_.sink->takes_groups()) {}

  void run() {
    const spec::PipelineStage& stage = w_.architecture.pipeline;
    const PipelineActions actions =
        stage_schedule({stage.stages, std::ssize(cuts_), 1}, stage.stage);
    for (const Round& round : rounds_of(actions)) {
      ops_.repeat(round.times, [&](std::int64_t i) {
        const auto from = static_cast<std::size_t>(i) * round.actions;
        for (std::size_t a = 0; a < round.actions; ++a) execute(actions[round.first + from + a]);
      });
    }
    if (trains_tied_table(w_)) join_table();
  }

 private:
  // So many actions, `times` times, each time with the next micro-batches.
  struct Round {
    std::size_t first = 0, actions = 0;
    std::int64_t times = 1;
  };
  struct Open {
    std::optional<DeviceBatch<Ops>> batch;  // of the last stage
    MicroBatch micro;
    std::vector<Tape<T>> tapes;  // one, or none of a micro-batch without rows
  };

  // From a forward to the next one; those that do the same with micro-batches of as many rows, and leave as
  // much waiting as there was, are one.
  [[nodiscard]] std::vector<Round> rounds_of(const PipelineActions& actions) const {
    std::vector<Round> out;
    for (std::size_t first = 0; first < actions.size();) {
      std::size_t end = first + 1;
      while (end < actions.size() && actions[end].kind != Kind::kForward) ++end;
      const Round round{first, end - first};
      if (!out.empty() && alike(actions, out.back(), round)) {
        ++out.back().times;
      } else {
        out.push_back(round);
      }
      first = end;
    }
    return out;
  }
  [[nodiscard]] bool alike(const PipelineActions& actions, const Round& a, const Round& b) const {
    if (a.actions != b.actions || !is_steady(actions, b)) return false;
    const auto what = [&](const Round& round, std::size_t i) {
      const PipelineAction& action = actions[round.first + i];
      const std::int64_t ahead = action.micro_batch - actions[round.first].micro_batch;
      return std::tuple(action.kind, ahead, action.peer, micro_of(action).count);
    };
    for (std::size_t i = 0; i < a.actions; ++i)
      if (what(a, i) != what(b, i)) return false;
    return true;
  }
  [[nodiscard]] bool is_steady(const PipelineActions& actions, const Round& round) const {
    const auto from = actions.begin() + static_cast<std::ptrdiff_t>(round.first);
    const auto count = [&](Kind kind) {
      return std::count_if(from, from + static_cast<std::ptrdiff_t>(round.actions),
                           [&](const PipelineAction& action) { return action.kind == kind; });
    };
    return count(Kind::kBackward) == 1 &&
           count(Kind::kReceiveHidden) == (w_.architecture.embeds() ? 0 : 1) &&
           count(Kind::kReceiveGradients) == (w_.architecture.has_head() ? 0 : 1);
  }
  [[nodiscard]] const MicroBatch& micro_of(const PipelineAction& action) const {
    return cuts_[static_cast<std::size_t>(action.micro_batch)];
  }

  void execute(const PipelineAction& action) {
    if (!action.computes() && micro_of(action).count == 0) return;
    if constexpr (requires { b_.begins(action); }) b_.begins(action);
    switch (action.kind) {
      case Kind::kReceiveHidden:
        return receive(hidden_, action);
      case Kind::kForward:
        return forward(micro_of(action));
      case Kind::kSendHidden:
        ops_.send(open_.back().tapes.front().hidden, action.peer);
        open_.back().tapes.front().hidden = T();
        return;
      case Kind::kReceiveGradients:
        return receive(gradients_, action);
      case Kind::kBackward:
        return backward();
      case Kind::kSendGradients:
        ops_.send(input_gradients_, action.peer);
        input_gradients_ = T();
        return;
    }
  }

  void receive(std::deque<T>& queue, const PipelineAction& action) {
    const Sequences<T>& all = b_.experience().sequences;
    const MicroBatch& micro = micro_of(action);
    const std::int64_t rows = rows_of(all, Objective::kSequencesOfRow * micro.first,
                                      Objective::kSequencesOfRow * micro.count);
    queue.push_back(ops_.empty({w_.architecture.tensor.rows_of(rows), w_.architecture.hidden_size},
                               ops_.dtype(any_weight(w_))));
    ops_.receive_(queue.back(), action.peer);
  }

  void forward(const MicroBatch& micro) {
    constexpr std::int64_t kOfRow = Objective::kSequencesOfRow;
    expect_passes(w_, Sweep::kForward, 1);
    Open open;
    open.micro = micro;
    std::vector<BatchTokens<T>> tokens;
    std::vector<T> inputs;
    if (micro.count > 0) {
      open.batch.emplace(ops_, b_.experience().sequences, kOfRow * micro.first,
                         kOfRow * micro.count);
      tokens.push_back(open.batch->tokens());
      if (!w_.architecture.embeds()) {
        inputs.push_back(std::move(hidden_.front()));
        hidden_.pop_front();
      }
    }
    open.tapes = forward_train(ops_, w_, tokens, b_.checkpointing(), std::move(inputs));
    if (!w_.architecture.has_head()) open.batch.reset();
    open_.push_back(std::move(open));
  }

  void backward() {
    Open open = std::move(open_.front());
    open_.pop_front();
    expect_passes(w_, Sweep::kBackward, 1);
    const bool has_rows = open.micro.count > 0;
    LossNumbers numbers;
    std::vector<T> d;
    if (w_.architecture.has_head()) {
      d = head_backward(open, numbers);
    } else if (has_rows) {
      d.push_back(std::move(gradients_.front()));
      gradients_.pop_front();
    }
    blocks_backward(ops_, w_, open.tapes, d);
    if (w_.architecture.embeds()) {
      embedding_backward(open, std::move(d));
    } else {
      if (leaves_) w_.sink->take(key_of(Table::kEmbedding));
      if (has_rows) input_gradients_ = std::move(d.front());
    }
    if (has_rows) b_.take_numbers(std::move(numbers));
  }

  // Gradients of the last block's output.
  std::vector<T> head_backward(Open& open, LossNumbers& numbers) {
    const UsedTable<T> head(w_, Table::kHead, BlockUse::kAddGradients);
    head.gradients().begin(ops_);
    std::vector<T> d;
    if (open.micro.count > 0) {
      d.push_back(objective_.d_hidden(ops_, w_, b_.experience(), *open.batch,
                                      open.tapes.front().hidden, numbers));
      open.batch.reset();
    }
    head.gradients().end([&](const T& gradients) { return tile_norms(ops_, gradients); });
    return d;
  }

  // A tied table's rows wait for all heads, unless its gradients leave with each micro-batch.
  void embedding_backward(Open& open, std::vector<T> d) {
    const bool keeps = trains_tied_table(w_) && !leaves_;
    with_embedding_gradients(ops_, w_, [&] {
      for (std::size_t i = 0; i < open.tapes.size(); ++i) {
        const Tape<T>& tape = open.tapes[i];
        if (!keeps) {
          embed_backward(ops_, w_, tape.tokens, tape.rows, std::move(d[i]));
          continue;
        }
        tied_.keep(ops_, open.micro, tape.tokens,
                   embed_rows_backward(ops_, w_, tape.tokens, tape.rows, std::move(d[i])));
      }
    });
  }

  void join_table() {
    const std::vector<TrainedUnit<T>>& units = b_.units();
    const auto table = std::find_if(units.begin(), units.end(), [](const TrainedUnit<T>& unit) {
      return unit.unit.find(spec::Module::kTokenEmbedding) != nullptr;
    });
    if (table == units.end()) return;  // this rank's slices have nothing of it
    const T& all = table->gradients;
    const std::int64_t last = w_.architecture.pipeline.stages - 1;
    if (w_.architecture.has_head()) {
      ops_.send(leaves_ ? all : w_.d_token_table, 0);
      return ops_.receive_(all, 0);
    }
    if (leaves_) {
      // The memory that a micro-batch's are added in.
      const T slot = w_.sink->new_gradients(key_of(Table::kEmbedding)).front();
      const T heads = ops_.narrow(slot, 0, 0, all.size(0));
      ops_.receive_(heads, last);
      ops_.add_(all, heads);
    } else {
      ops_.receive_(w_.d_token_table, last);
      for_each_micro_batch(
          ops_, cuts_, [&](const MicroBatch& micro) { tied_.add(ops_, w_.d_token_table, micro); });
    }
    ops_.send(all, last);
  }

  B& b_;
  Ops& ops_;
  const Weights<T>& w_;
  const std::vector<MicroBatch>& cuts_;
  const Objective& objective_;
  bool leaves_;                       // gradients, with each micro-batch
  std::deque<T> hidden_, gradients_;  // received
  std::deque<Open> open_;             // wait for their backward
  T input_gradients_;                 // of the last backward
  TiedRows<T> tied_;
};

/// Forward, loss and backward of every micro-batch of a mini-batch, as a stage has part in them. Its
/// gradients start at zero. Micro-batches that a plan counts for memory alone fill a pipeline each.
template <class B, class Objective>
void add_stage_gradients(B& b, const std::vector<MicroBatch>& cuts, const Objective& objective) {
  zero_gradients(b.ops(), b.units());
  std::vector<MicroBatch> counted;
  for (const MicroBatch& micro : cuts)
    if (!micro.aside) counted.push_back(micro);
  const std::int64_t further = b.further_groups(std::ssize(counted));
  counted.insert(counted.end(), static_cast<std::size_t>(further), MicroBatch{});
  StageRun(b, counted, objective).run();
  const auto stages = static_cast<std::size_t>(b.weights().architecture.pipeline.stages);
  for (const MicroBatch& micro : cuts) {
    if (!micro.aside) continue;
    const std::vector<MicroBatch> same(std::min(stages, counted.size()), micro);
    b.ops().aside([&] { StageRun(b, same, objective).run(); });
  }
}

}  // namespace neap::step

// A pipeline stage's part of a mini-batch: executes its schedule (step/pipeline/pipeline_schedule.h) with
// tensors.
//
// Micro-batches pass through a chunk in order, so waiting tensors are in queues. A plan skips equal
// rounds.
//
// A backward in two parts defers the weight gradients of the blocks' matrices. It keeps the inputs
// of products and the gradients of their results. Gradients of norms, embedding and head belong to
// the first part. Each parameter's sum runs over micro-batches in the same order as in a backward
// in one part, so results are bitwise the same.
//
// With ZeRO sharding of weights or gradients, ranks of the same stage run collectives in every
// action that computes. They have the same schedule, and so do all stages. A rank with fewer
// micro-batches joins with empty ones, which stages do not send on. Collectives are in the single
// order of all transfers, at the place of their action, so ranks cannot deadlock. In a backward in
// two parts, the first part gathers weights and reduces the head's gradients. The second part
// reduces the blocks' gradients and gathers nothing. A block's gradients have memory only in the
// second part, so those of its norms wait in separate tensors. The same holds for offloaded
// gradients.
//
// A tied embedding has two copies, on the first and the last stage. The last stage sends the sums
// of its heads' gradients to the first. The first adds those of its embeddings and sends back the
// total, so results are bitwise those of one rank. With sharded gradients ranks exchange their
// shards, which both stages cut in the same way.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "step/pipeline/pipeline_rounds.h"
#include "step/pipeline/stage_transfers.h"
#include "step/training/training.h"

namespace neap::step {

/// Runs a backend (step/pipeline/runner.h) of a model with pipeline stages.
template <class B, class Objective>
class StageRun {
  using Ops = typename B::Ops;
  using T = typename Ops::Tensor;
  using Kind = PipelineAction::Kind;

 public:
  /// All arguments must outlive it. Gradients of the mini-batch `cuts` are added to those of the
  /// model. Micro-batches without rows belong to other ranks.
  StageRun(B& b, const std::vector<MicroBatch>& cuts, const Objective& objective)
      : b_(b),
        ops_(b.ops()),
        w_(b.weights()),
        cuts_(cuts),
        objective_(objective),
        leaves_(w_.sink != nullptr && w_.sink->takes_groups()) {
    for (std::int64_t chunk = 0; chunk < w_.architecture.chunks(); ++chunk)
      chunks_.push_back({w_.architecture.chunk(chunk), chunk == 0});
  }

  void run() {
    const spec::PipelineStage& stage = w_.architecture.pipeline;
    const PipelineShape shape = shape_of(stage, std::ssize(cuts_));
    const PipelineActions actions = stage_schedule(shape, stage.stage);
    const auto alike = [&](std::int64_t a, std::int64_t b) {
      return micro_of(a).count == micro_of(b).count;
    };
    // Kept tensors alternate between rounds, and reach a steady state after about two turns.
    const std::int64_t kept =
        shape.chunks == 1 ? micro_batches_kept(shape, stage.stage) : kRoundsOfKeptChunks;
    const std::int64_t lasting = std::min(2 * kept, kMostLasting);
    for (const PipelineRound& round : rounds_of(shape, actions, alike)) {
      ops_.repeat(
          round.times,
          [&](std::int64_t i) {
            const std::size_t from = round.first + static_cast<std::size_t>(i) * round.actions;
            for (std::size_t a = from; a < from + round.actions; ++a) execute(actions[a]);
          },
          lasting);
    }
    if (trains_tied_table(w_)) join_table();
  }

 private:
  // With chunks, a round covers all parts, and a micro-batch is complete when the third round after
  // it begins.
  static constexpr std::int64_t kRoundsOfKeptChunks = 3;
  // Bounds the planning time.
  static constexpr std::int64_t kMostLasting = 8;
  struct Open {
    std::optional<DeviceBatch<Ops>> batch;  // set if the head follows
    MicroBatch micro;
    std::vector<Tape<T>> tapes;  // one, or none for a micro-batch without rows
  };
  struct Chunk {
    spec::BlockChunk part;
    bool first = true;                                  // first part of its stage
    std::deque<T> hidden{}, gradients{};                // received from other stages
    std::deque<Open> open{};                            // waiting for their backward
    std::deque<std::vector<GradientQueue<T>>> later{};  // waiting for its second part
  };

  [[nodiscard]] const MicroBatch& micro_of(std::int64_t number) const {
    return cuts_[static_cast<std::size_t>(number)];
  }

  void execute(const PipelineAction& action) {
    if (!action.computes() && micro_of(action.micro_batch).count == 0) return;
    if constexpr (requires { b_.begins(action); }) b_.begins(action);
    Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
    const MicroBatch& micro = micro_of(action.micro_batch);
    switch (action.kind) {
      case Kind::kReceiveHidden:
        return receive(chunk.hidden, micro, action.peer);
      case Kind::kForward:
        return forward(chunk, micro);
      case Kind::kSendHidden:
        return send_hidden(ops_, w_, std::exchange(chunk.open.back().tapes.front().hidden, T()),
                           action.peer);
      case Kind::kReceiveGradients:
        return receive(chunk.gradients, micro, action.peer);
      case Kind::kBackward:
        return backward(chunk, nullptr);
      case Kind::kBackwardInput:
        return backward(chunk, &chunk.later.emplace_back());
      case Kind::kBackwardWeights:
        return backward_of_weights(chunk);
      case Kind::kSendGradients:
        return send_hidden(ops_, w_, std::exchange(input_gradients_, T()), action.peer);
    }
  }

  void receive(std::deque<T>& queue, const MicroBatch& micro, std::int64_t stage) {
    queue.push_back(receive_hidden(ops_, w_, rows_in(micro), stage));
  }
  // Takes the oldest entry.
  T take(std::deque<T>& queue, const MicroBatch& micro) {
    T x = std::move(queue.front());
    queue.pop_front();
    return joined_hidden(ops_, w_, std::move(x), rows_in(micro));
  }
  [[nodiscard]] std::int64_t rows_in(const MicroBatch& micro) const {
    return rows_of(b_.experience().sequences, Objective::kSequencesOfRow * micro.first,
                   Objective::kSequencesOfRow * micro.count);
  }

  void forward(Chunk& chunk, const MicroBatch& micro) {
    constexpr std::int64_t kOfRow = Objective::kSequencesOfRow;
    expect_passes(w_, Sweep::kForward, 1, chunk.part);
    Open open;
    open.micro = micro;
    std::vector<BatchTokens<T>> tokens;
    std::vector<T> inputs;
    if (micro.count > 0) {
      open.batch.emplace(ops_, b_.experience().sequences, kOfRow * micro.first,
                         kOfRow * micro.count, loss_dtype(ops_, w_));
      tokens.push_back(open.batch->tokens());
      if (!chunk.part.embeds) inputs.push_back(take(chunk.hidden, micro));
    }
    open.tapes = forward_train(ops_, w_, tokens, b_.checkpointing(), chunk.part, std::move(inputs));
    if (!chunk.part.has_head) open.batch.reset();
    chunk.open.push_back(std::move(open));
  }

  void backward_of_weights(Chunk& chunk) {
    add_blocks_gradients(ops_, w_, chunk.part, std::move(chunk.later.front()));
    chunk.later.pop_front();
    if (leaves_) w_.sink->end_group();
  }

  void backward(Chunk& chunk, std::vector<GradientQueue<T>>* later) {
    Open open = std::move(chunk.open.front());
    chunk.open.pop_front();
    expect_passes(w_, later == nullptr ? Sweep::kBackward : Sweep::kBackwardInput, 1, chunk.part);
    const bool has_rows = open.micro.count > 0;
    KeptNumbers<T> numbers;
    std::vector<T> d;
    if (chunk.part.has_head) {
      d = head_backward(open, numbers);
    } else if (has_rows) {
      d.push_back(take(chunk.gradients, open.micro));
    }
    blocks_backward(ops_, w_, chunk.part, open.tapes, d, later);
    if (chunk.part.embeds) {
      embedding_backward(open, std::move(d));
    } else {
      if (leaves_) end_group(chunk.part);
      if (has_rows) input_gradients_ = std::move(d.front());
    }
    // Once per micro-batch: with the loss, or at the end.
    if (has_rows && (chunk.part.has_head || (chunk.first && !w_.architecture.has_head())))
      b_.take_numbers(std::move(numbers));
  }

  // For a stage without an embedding. The last stage may have a copy of a tied one.
  void end_group(const spec::BlockChunk& part) {
    if (part.has_head) {
      w_.sink->take(key_of(Table::kEmbedding));
    } else {
      w_.sink->end_group();
    }
  }

  // Gradients of the last block's output.
  std::vector<T> head_backward(Open& open, KeptNumbers<T>& numbers) {
    const UsedTable<T> head(w_, Table::kHead, BlockUse::kAddGradients);
    head.gradients().begin(ops_);
    std::vector<T> d;
    if (open.micro.count > 0) {
      d.push_back(objective_.d_hidden(ops_, w_, b_.experience(), *open.batch,
                                      open.tapes.front().hidden, numbers));
      open.batch.reset();
    }
    head.gradients().end([&](UnitKey unit, const T& gradients) {
      return complete_gradients(ops_, w_, unit, gradients);
    });
    return d;
  }

  // Row gradients of a tied embedding wait for all heads, unless its gradients are reduced with
  // each micro-batch.
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
    const std::int64_t last = w_.architecture.pipeline.stages - 1;
    const bool heads = w_.architecture.has_head();
    if (leaves_) {
      return w_.sink->complete_table([&](const T& all) {
        if (heads) return exchange_table(all, all);
        // The buffer in which a micro-batch's gradients are accumulated.
        const T slot = w_.sink->new_gradients(key_of(Table::kEmbedding)).front();
        const T sums = ops_.narrow(slot, 0, 0, all.size(0));
        ops_.receive_(sums, last);
        ops_.add_(all, sums);
        ops_.send(all, last);
      });
    }
    const std::vector<TrainedUnit<T>>& units = b_.units();
    const T& all = std::find_if(units.begin(), units.end(), [](const TrainedUnit<T>& unit) {
                     return unit.unit.find(spec::Module::kTokenEmbedding) != nullptr;
                   })->gradients;
    if (heads) return exchange_table(w_.d_token_table, all);
    ops_.receive_(w_.d_token_table, last);
    for_each_micro_batch(
        ops_, cuts_, [&](const MicroBatch& micro) { tied_.add(ops_, w_.d_token_table, micro); });
    ops_.send(all, last);
  }
  // Exchanges the heads' sums of the last stage for the total.
  void exchange_table(const T& sums, const T& all) {
    ops_.send(sums, 0);
    ops_.receive_(all, 0);
  }

  B& b_;
  Ops& ops_;
  const Weights<T>& w_;
  const std::vector<MicroBatch>& cuts_;
  const Objective& objective_;
  bool leaves_;  // gradients are reduced with each micro-batch
  std::vector<Chunk> chunks_;
  T input_gradients_;  // of the last backward
  TiedRows<T> tied_;
};

/// Runs a stage's part of forward, loss and backward for every micro-batch of a mini-batch. Its
/// gradients start at zero. Micro-batches that a plan counts only for memory fill a pipeline each.
template <class B, class Objective>
void add_stage_gradients(B& b, const std::vector<MicroBatch>& cuts, const Objective& objective) {
  zero_gradients(b.ops(), b.units());
  std::vector<MicroBatch> counted;
  for (const MicroBatch& micro : cuts)
    if (!micro.aside) counted.push_back(micro);
  const std::int64_t further = b.further_groups(std::ssize(counted));
  counted.insert(counted.end(), static_cast<std::size_t>(further), MicroBatch{});
  begin_mini_batch(b.weights(), std::ssize(counted));
  if (b.weights().sink != nullptr) b.weights().sink->begin_mini_batch(std::ssize(counted));
  StageRun(b, counted, objective).run();
  const spec::PipelineStage& stage = b.weights().architecture.pipeline;
  const auto most = static_cast<std::size_t>(micro_batches_kept(shape_of(stage), 0));
  for (const MicroBatch& micro : cuts) {
    if (!micro.aside) continue;
    const std::vector<MicroBatch> same(std::min(most, counted.size()), micro);
    b.ops().aside([&] { StageRun(b, same, objective).run(); });
  }
}

}  // namespace neap::step

#include "step/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/format.h"

namespace neap::step {
namespace {

using Kind = PipelineAction::Kind;

// A forward or backward of a stage, or a part of a backward.
struct Compute {
  Kind kind = Kind::kForward;
  std::int64_t micro_batch = 0, chunk = 0;
  [[nodiscard]] bool forward() const { return kind == Kind::kForward; }
  [[nodiscard]] bool sends() const { return kind != Kind::kBackwardWeights; }
  // In units of the timetable.
  [[nodiscard]] std::int64_t time() const { return kind == Kind::kBackward ? 2 : 1; }
};
using Computes = std::vector<Compute>;
// The computations of a stage between transfers.
using Turns = std::vector<Computes>;

// Chunk and micro-batch of a stage's n-th forward: rounds of `stages` micro-batches through every
// chunk.
std::vector<Compute> forwards_of(const PipelineShape& shape) {
  Computes out;
  for (std::int64_t first = 0; first < shape.micro_batches; first += shape.stages) {
    const std::int64_t end = std::min(first + shape.stages, shape.micro_batches);
    for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk)
      for (std::int64_t i = first; i < end; ++i) out.push_back({Kind::kForward, i, chunk});
  }
  return out;
}

// Backwards pass through the chunks in reverse order.
std::vector<Compute> backwards_of(const PipelineShape& shape) {
  Computes out = forwards_of(shape);
  for (Compute& each : out) {
    each.kind = Kind::kBackward;
    each.chunk = shape.chunks - 1 - each.chunk;
  }
  return out;
}

// Forwards before the first backward, in addition to the one that accompanies each backward.
std::int64_t warm_up(const PipelineShape& shape, std::int64_t stage) {
  const std::int64_t behind = shape.stages - stage - 1;
  const std::int64_t count =
      shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * shape.stages;
  return std::min(count, shape.micro_batches * shape.chunks);
}

// For full rounds.
Turns turns_of_full(const PipelineShape& shape, std::int64_t stage) {
  const Computes forwards = forwards_of(shape), backwards = backwards_of(shape);
  const auto warm = static_cast<std::size_t>(warm_up(shape, stage));
  Turns out;
  for (std::size_t i = 0; i < warm; ++i) out.push_back({forwards[i]});
  for (std::size_t i = warm; i < forwards.size(); ++i) {
    out.push_back({forwards[i]});
    if (shape.chunks == 1) out.emplace_back();
    out.back().push_back(backwards[i - warm]);
  }
  for (std::size_t i = backwards.size() - warm; i < backwards.size(); ++i)
    out.push_back({backwards[i]});
  return out;
}

// One chunk with a backward in two parts, except on the first stage, where no stage waits for the
// input gradients. If the previous stage still has a forward to do before it needs the gradients,
// they are sent after the weight gradients, together with the data from there. So neighbours meet
// once per forward and backward.
Turns zero_bubble_turns(const PipelineShape& shape, std::int64_t stage) {
  const std::int64_t micro_batches = shape.micro_batches, warm = warm_up(shape, stage);
  const Kind backward = stage == 0 ? Kind::kBackward : Kind::kBackwardInput;
  Turns out;
  for (std::int64_t i = 0; i < warm; ++i) out.push_back({{Kind::kForward, i, 0}});
  for (std::int64_t i = 0; i < micro_batches + stage; ++i) {
    if (warm + i < micro_batches) out.push_back({{Kind::kForward, warm + i, 0}});
    if (i < micro_batches) out.push_back({{backward, i, 0}});
    if (i < stage || stage == 0) continue;
    if (warm + i + 1 >= micro_batches) out.emplace_back();
    out.back().push_back({Kind::kBackwardWeights, i - stage, 0});
  }
  return out;
}

// The last round may lack micro-batches. The order is that of full rounds without them.
Turns training_turns(const PipelineShape& shape, std::int64_t stage) {
  if (shape.zero_bubble && shape.stages > 1) return zero_bubble_turns(shape, stage);
  PipelineShape full = shape;
  if (shape.chunks > 1)
    full.micro_batches = (shape.micro_batches + shape.stages - 1) / shape.stages * shape.stages;
  Turns out = turns_of_full(full, stage);
  for (Computes& turn : out)
    std::erase_if(
        turn, [&](const Compute& compute) { return compute.micro_batch >= shape.micro_batches; });
  std::erase_if(out, [](const Computes& turn) { return turn.empty(); });
  return out;
}

std::vector<Turns> training_turns(const PipelineShape& shape) {
  std::vector<Turns> out;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage)
    out.push_back(training_turns(shape, stage));
  return out;
}

// Places all stages on one time axis; a backward takes two units.
class Timetable {
 public:
  /// `only` is the stage whose list is requested; of the others only times are computed.
  Timetable(const PipelineShape& shape, std::vector<Turns> turns,
            std::optional<std::int64_t> only = {})
      : shape_(shape), turns_(std::move(turns)), only_(only) {
    const auto parts = static_cast<std::size_t>(shape.parts());
    const std::vector<std::int64_t> unknown(static_cast<std::size_t>(shape.micro_batches), -1);
    forward_ends_.assign(parts, unknown);
    backward_ends_.assign(parts, unknown);
    fill();
  }

  // Every stage's part of the global order. It is sorted by time; transfers precede computations
  // that begin at the same time. Among transfers of one time, forward ones come first, and among
  // these the ones of even stages. So pairs of neighbours transfer at the same time, not in turn.
  [[nodiscard]] std::vector<PipelineActions> lists() {
    const auto order = [](const Entry& entry) {
      const bool computes = entry.action.computes();
      return std::tuple(entry.time, computes,
                        !computes && entry.action.kind == Kind::kSendGradients,
                        computes ? 0 : entry.stage % 2, entry.stage);
    };
    std::stable_sort(entries_.begin(), entries_.end(),
                     [&](const Entry& a, const Entry& b) { return order(a) < order(b); });
    std::vector<PipelineActions> out(static_cast<std::size_t>(shape_.stages));
    for (const Entry& entry : entries_) {
      PipelineAction action = entry.action;
      out[static_cast<std::size_t>(entry.stage)].push_back(action);
      if (action.computes()) continue;
      const std::int64_t receiver = action.peer;
      action.kind =
          action.kind == Kind::kSendHidden ? Kind::kReceiveHidden : Kind::kReceiveGradients;
      action.peer = entry.stage;
      action.chunk = entry.chunk_of_receiver;
      out[static_cast<std::size_t>(receiver)].push_back(action);
    }
    return out;
  }

 private:
  struct Entry {
    std::int64_t time = 0, stage = 0;
    PipelineAction action;
    std::int64_t chunk_of_receiver = 0;
  };

  void fill() {
    std::vector<std::size_t> next(turns_.size());
    std::vector<std::int64_t> free(turns_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < turns_.size(); ++s) {
        while (next[s] < turns_[s].size()) {
          const Computes& turn = turns_[s][next[s]];
          const auto stage = static_cast<std::int64_t>(s);
          const std::optional<std::int64_t> ready = ready_at(stage, turn);
          if (!ready) break;
          free[s] = run(stage, turn, std::max(free[s], *ready));
          ++next[s];
          moved = true;
        }
      }
    }
  }

  // When the inputs of a turn are available; nullopt: not known yet.
  [[nodiscard]] std::optional<std::int64_t> ready_at(std::int64_t stage,
                                                     const Computes& turn) const {
    std::int64_t last = 0;
    for (const Compute& compute : turn) {
      // The last part's backward follows its forward, which may be in the same turn.
      const std::optional<std::int64_t> ready = ready_at(stage, compute);
      if (!ready) return std::nullopt;
      last = std::max(last, *ready);
    }
    return last;
  }
  [[nodiscard]] std::optional<std::int64_t> ready_at(std::int64_t stage,
                                                     const Compute& compute) const {
    const std::int64_t part = shape_.part(stage, compute.chunk);
    const std::int64_t from = compute.forward() ? part - 1 : part + 1;
    if (from < 0 || from == shape_.parts() || !compute.sends()) return 0;
    const auto& ends = compute.forward() ? forward_ends_ : backward_ends_;
    const std::int64_t end =
        ends[static_cast<std::size_t>(from)][static_cast<std::size_t>(compute.micro_batch)];
    return end < 0 ? std::nullopt : std::optional(end);
  }

  // Returns when the turn ends, which is when its results are sent to the stages of the next parts.
  std::int64_t run(std::int64_t stage, const Computes& turn, std::int64_t time) {
    for (const Compute& compute : turn) {
      keep({time, stage, {compute.kind, compute.micro_batch, compute.chunk, -1}, 0});
      time += compute.time();
    }
    for (const Compute& compute : turn) {
      if (!compute.sends()) continue;
      const std::int64_t part = shape_.part(stage, compute.chunk);
      auto& ends = compute.forward() ? forward_ends_ : backward_ends_;
      ends[static_cast<std::size_t>(part)][static_cast<std::size_t>(compute.micro_batch)] = time;
      const std::int64_t to = compute.forward() ? part + 1 : part - 1;
      if (shape_.stages == 1 || to < 0 || to == shape_.parts()) continue;
      const Kind sends = compute.forward() ? Kind::kSendHidden : Kind::kSendGradients;
      keep({time,
            stage,
            {sends, compute.micro_batch, compute.chunk, to % shape_.stages},
            to / shape_.stages});
    }
    return time;
  }
  void keep(const Entry& entry) {
    if (!only_ || entry.stage == *only_ || entry.action.peer == *only_) entries_.push_back(entry);
  }

  PipelineShape shape_;
  std::vector<Turns> turns_;
  std::optional<std::int64_t> only_;
  std::vector<std::vector<std::int64_t>> forward_ends_, backward_ends_;  // per part and micro-batch
  std::vector<Entry> entries_;  // a transfer is listed under its sender
};

}  // namespace

std::vector<PipelineActions> pipeline_schedule(const PipelineShape& shape) {
  return Timetable(shape, training_turns(shape)).lists();
}

PipelineActions stage_schedule(const PipelineShape& shape, std::int64_t stage) {
  std::vector<PipelineActions> lists = Timetable(shape, training_turns(shape), stage).lists();
  return std::move(lists[static_cast<std::size_t>(stage)]);
}

std::vector<PipelineActions> pipeline_inference(const PipelineShape& shape) {
  Turns turns;
  for (const Compute& compute : forwards_of(shape)) turns.push_back({compute});
  return Timetable(shape, std::vector<Turns>(static_cast<std::size_t>(shape.stages), turns))
      .lists();
}

PipelineStorage storage_of(const PipelineActions& actions) {
  PipelineStorage now, most;
  std::set<std::tuple<bool, std::int64_t, std::int64_t>> received;  // and not used yet
  std::map<std::int64_t, std::int64_t> open;                        // tapes of each micro-batch
  for (const PipelineAction& action : actions) {
    const bool forward = action.kind == Kind::kReceiveHidden || action.kind == Kind::kForward;
    const std::tuple key(forward, action.chunk, action.micro_batch);
    if (action.computes()) {
      std::int64_t more = action.kind == Kind::kForward ? 1 : -1;
      if (action.kind == Kind::kBackwardInput) more = 0;
      now.tapes += more;
      if ((open[action.micro_batch] += more) == 0) open.erase(action.micro_batch);
      now.received -= received.erase(key) > 0 ? 1 : 0;
    } else if (!action.sends()) {
      received.insert(key);
      ++now.received;
    }
    most.tapes = std::max(most.tapes, now.tapes);
    most.micro_batches = std::max(most.micro_batches, std::ssize(open));
    most.received = std::max(most.received, now.received);
  }
  return most;
}

std::int64_t micro_batches_kept(const PipelineShape& shape, std::int64_t stage) {
  if (shape.zero_bubble) return shape.stages;
  if (shape.chunks == 1) return shape.stages - stage;
  // A micro-batch is complete when the third round after it begins.
  PipelineShape rounds = shape;
  rounds.micro_batches = 4 * shape.stages;
  return storage_of(stage_schedule(rounds, stage)).micro_batches;
}

std::int64_t inputs_kept(const PipelineShape& shape, std::int64_t stage) {
  PipelineShape rounds = shape;  // later ones are alike
  rounds.micro_batches = std::min(shape.micro_batches, 4 * shape.stages);
  std::map<std::int64_t, std::int64_t> open;  // by chunk
  std::int64_t most = 0;
  for (const PipelineAction& action : stage_schedule(rounds, stage)) {
    if (!action.computes() || action.kind == Kind::kBackwardWeights) continue;
    most = std::max(most, open[action.chunk] += action.kind == Kind::kForward ? 1 : -1);
  }
  return most;
}

namespace {

// Simulates stages that run their lists at the same time.
class Stages {
 public:
  Stages(const std::vector<PipelineActions>& lists, const PipelineTimes& times,
         std::vector<PipelineSpan>* spans)
      : lists_(lists), times_(times), spans_(spans), clock_(lists.size()), next_(lists.size()) {
    run_.busy.assign(lists.size(), 0);
    run_.transferring.assign(lists.size(), 0);
  }

  Result<PipelineRun> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < lists_.size(); ++s)
        while (next(s) != nullptr && step(s)) moved = true;
    }
    for (std::size_t s = 0; s < lists_.size(); ++s) {
      if (next(s) != nullptr)
        return Status(ErrorCode::kInternal,
                      format("Stage {} of the pipeline waits at action {}", s, next_[s]));
      run_.seconds = std::max(run_.seconds, clock_[s]);
    }
    run_.ends = clock_;
    return run_;
  }

 private:
  [[nodiscard]] const PipelineAction* next(std::size_t s) const {
    return next_[s] < lists_[s].size() ? &lists_[s][next_[s]] : nullptr;
  }
  // Executes the stage's next action if possible. Otherwise it waits.
  bool step(std::size_t s) {
    const PipelineAction& action = *next(s);
    if (action.computes()) {
      const std::size_t part = static_cast<std::size_t>(action.chunk) * lists_.size() + s;
      const double seconds = times_of(action.kind).at(part);
      if (spans_ != nullptr) spans_->push_back({s, action, clock_[s], clock_[s] + seconds});
      clock_[s] += seconds;
      run_.busy[s] += seconds;
    } else if (!meet(s, action)) {
      return false;
    }
    ++next_[s];
    return true;
  }
  [[nodiscard]] const std::vector<double>& times_of(Kind kind) const {
    if (kind == Kind::kForward) return times_.forward;
    return kind == Kind::kBackwardWeights ? times_.weights : times_.backward;
  }
  // Whether both sides have reached the transfer.
  bool meet(std::size_t s, const PipelineAction& mine) {
    const auto peer = static_cast<std::size_t>(mine.peer);
    const PipelineAction* const theirs = next(peer);
    if (theirs == nullptr || theirs->computes() || theirs->sends() == mine.sends() ||
        theirs->peer != static_cast<std::int64_t>(s) || theirs->micro_batch != mine.micro_batch)
      return false;
    const double seconds = transfer(s, peer);
    clock_[s] = clock_[peer] = std::max(clock_[s], clock_[peer]) + seconds;
    run_.transferring[s] += seconds;
    run_.transferring[peer] += seconds;
    ++next_[peer];
    return true;
  }
  // Between neighbours.
  [[nodiscard]] double transfer(std::size_t a, std::size_t b) const {
    if (times_.transfer.empty()) return 0;
    return times_.transfer.at((a + 1) % lists_.size() == b ? a : b);
  }

  const std::vector<PipelineActions>& lists_;
  const PipelineTimes& times_;
  std::vector<PipelineSpan>* spans_;
  std::vector<double> clock_;
  std::vector<std::size_t> next_;
  PipelineRun run_;
};

}  // namespace

Result<PipelineRun> run_pipeline(const std::vector<PipelineActions>& stages,
                                 const PipelineTimes& times, std::vector<PipelineSpan>* spans) {
  return Stages(stages, times, spans).run();
}

}  // namespace neap::step

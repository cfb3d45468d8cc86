#include "bridge/schedule_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "base/log.h"

namespace neap::bridge {
namespace {

using plan::Move;

template <class Items>
[[noreturn]] void throw_unknown(const char* kind, std::string_view wanted, const Items& items) {
  std::string known;
  for (const auto& item : items) known += (known.empty() ? "" : ", ") + item.name();
  throw Error(ErrorCode::kNotFound,
              format("The plan has no {} \"{}\"; it has {}", kind, wanted, known));
}

// Bytes that the arena has copied in one direction so far.
Bytes copied_by(const arena::Stats& stats, spec::TagId tag, Move::Kind kind) {
  const std::string name = to_string(tag);
  for (const arena::TagStats& t : stats.tags) {
    if (t.tag == name) return kind == Move::Kind::kPause ? t.copied_to_host : t.copied_to_device;
  }
  return {};
}

// One call of the arena: consecutive moves of one kind, or an exchange.
struct Call {
  std::vector<std::string> out, in;
  arena::PauseOptions options;
  std::size_t moves = 0;  // number of moves, in order
};

bool same_kind(const Move& a, const Move& b) {
  return a.kind == b.kind && a.copies == b.copies && a.policy == b.policy;
}

// `moves` are in the order of plan::moves_to.
std::vector<Call> calls_of(const std::vector<Move>& moves) {
  std::vector<Call> calls;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const Move& move = moves[i];
    const bool resume = move.kind == Move::Kind::kResume;
    const bool joins =
        i > 0 && (resume ? moves[i - 1].kind == Move::Kind::kResume || moves[i - 1].copies
                         : same_kind(moves[i - 1], move));
    if (!joins) {
      calls.emplace_back();
      calls.back().options.policy = move.policy;
      calls.back().options.unchanged = !move.copies;
    }
    (resume ? calls.back().in : calls.back().out).push_back(to_string(move.tag));
    ++calls.back().moves;
  }
  return calls;
}

arena::MoveReport run(arena::Arena& arena, const Call& call) {
  if (call.in.empty()) return value_or_throw(arena.pause(call.out, call.options));
  if (call.out.empty()) return value_or_throw(arena.resume(call.in));
  return value_or_throw(arena.exchange(call.out, call.in, call.options));
}

}  // namespace

Bytes Transition::copied() const {
  Bytes sum;
  for (const MoveRecord& move : moves) sum += move.copied;
  return sum;
}

ScheduleExecutor::ScheduleExecutor(arena::Arena& arena, const plan::MemoryPlan& plan,
                                   device::StreamId computes, std::function<void()> before_moves)
    : arena_(arena),
      plan_(plan),
      computes_(computes),
      before_moves_(std::move(before_moves)),
      states_(plan.tags.size()) {
  for (std::size_t t = 0; t < states_.size(); ++t) {
    states_[t].resident = plan_.tags[t].is_outside();
    create_regions(plan_.tags[t]);
  }
}

void ScheduleExecutor::create_regions(const plan::TagPlan& tag) {
  for (const plan::RegionPlan& region : tag.regions) {
    const arena::RegionInfo info =
        value_or_throw(arena_.create_paused(tag.name(), region.bytes, arena::Policy::kHost));
    for (const plan::PartPlan& part : region.parts) {
      places_.emplace(std::pair(tag.id, part.name),
                      Place{info.address + part.offset.count(), part.bytes, info.id, part.offset});
    }
  }
}

ScheduleExecutor::Place ScheduleExecutor::place(spec::TagId tag, std::string_view part) const {
  const auto it = places_.find(std::pair(tag, std::string(part)));
  if (it != places_.end()) return it->second;
  throw Error(ErrorCode::kNotFound,
              format("The plan has no part \"{}\" in tag \"{}\"", part, to_string(tag)));
}

std::size_t ScheduleExecutor::tag_index(spec::TagId tag) const {
  if (const auto index = plan_.index_of(tag)) return *index;
  throw_unknown("tag", to_string(tag), plan_.tags);
}

std::size_t ScheduleExecutor::phase_index(spec::PhaseId phase) const {
  if (const auto index = plan_.index_of(phase)) return *index;
  throw_unknown("phase", to_string(phase), plan_.phases);
}

ScheduleExecutor::Set ScheduleExecutor::resident() const {
  Set set;
  for (const plan::TagState& state : states_) set.push_back(state.resident);
  return set;
}

Bytes ScheduleExecutor::persistent() const {
  Bytes sum;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].resident) sum += plan_.tags[i].bytes;
  }
  return sum;
}

// Whether `moves` are the cycle's list for entering `phase` after the last one. A loop has two
// lists: for the first round and for later ones.
bool ScheduleExecutor::is_scheduled(std::size_t phase, const std::vector<Move>& moves) const {
  const plan::PhaseSchedule& s = plan_.schedule[phase];
  const std::size_t phases = plan_.cycle();
  // a phase that runs once: its tags were made resident for loading
  if (phase >= phases) return moves.empty();
  if (!last_phase_) return false;
  std::size_t next = (*last_phase_ + 1) % phases;
  while (next != phase && plan_.schedule[next].moves.empty()) next = (next + 1) % phases;
  const bool follows = next == phase;
  bool repeats = false;
  for (const plan::Loop& loop : plan_.loops) {
    const bool inside = phase > loop.first && phase <= loop.last;
    const bool starts = *last_phase_ == loop.last && phase == loop.first;
    repeats = repeats || (loop.times > 1 && (starts || (inside && follows)));
  }
  return (follows && moves == s.moves) || (repeats && moves == s.again);
}

Transition ScheduleExecutor::enter(std::size_t phase) {
  throw_if_error(finish_begun());
  std::vector<plan::TagState> states = states_;
  std::vector<Move> moves = plan::moves_into(plan_, states, phase);
  const bool scheduled = is_scheduled(phase, moves);
  last_phase_.reset();  // until the moves are complete
  const auto behind =
      std::find_if(moves.begin(), moves.end(), [](const Move& move) { return move.behind; });
  Transition done = execute({moves.begin(), behind});
  done.scheduled = scheduled;
  for (auto move = behind; move != moves.end(); ++move) begin(*move);
  plan::enter_phase(plan_, states_, phase);
  if (phase < plan_.cycle()) last_phase_ = phase;
  return done;
}

void ScheduleExecutor::begin(const Move& move) {
  before_moves_();
  const std::vector<std::string> tags = {to_string(move.tag)};
  // A fence of the whole device would also wait for its copies.
  const arena::Fence work = arena::Fence::of({computes_});
  const bool resume = move.kind == Move::Kind::kResume;
  auto ticket = resume ? arena_.begin_resume(tags) : arena_.begin_backup(tags, work);
  begun_.push_back({move, value_or_throw(std::move(ticket))});
  plan::TagState& state = states_[tag_index(move.tag)];
  if (resume)
    state.resident = true;
  else
    state.dirty = false;
}

Status ScheduleExecutor::finish_begun() {
  Status first;
  for (Begun& begun : std::exchange(begun_, {})) {
    const Move& move = begun.move;
    const Result<arena::MoveReport> report = begun.ticket->finish();
    if (report.ok()) {
      finished_.push_back({move.kind, move.tag, move.bytes, report->copied, report->copy_seconds,
                           report->seconds, true});
      continue;
    }
    if (move.kind == Move::Kind::kBackup) states_[tag_index(move.tag)].dirty = true;
    if (first.ok()) first = report.status();
  }
  if (!first.ok()) resync();
  return first;
}

Status ScheduleExecutor::finish_copies(std::vector<MoveRecord>& done) {
  Status status = finish_begun();
  for (const MoveRecord& record : std::exchange(finished_, {})) done.push_back(record);
  return status;
}

Transition ScheduleExecutor::move_to(const Set& wanted) {
  throw_if_error(finish_begun());
  std::vector<plan::TagState> states = states_;
  return execute(plan::moves_to(plan_, states, wanted));
}

Transition ScheduleExecutor::execute(const std::vector<Move>& moves) {
  Transition done;
  if (!moves.empty()) before_moves_();
  const arena::Stats before = arena_.stats();
  std::size_t next = 0;
  try {
    for (const Call& call : calls_of(moves)) {
      const arena::MoveReport report = run(arena_, call);
      done.seconds += report.seconds;
      Bytes all;
      for (std::size_t i = 0; i < call.moves; ++i) all += moves[next + i].bytes;
      for (std::size_t i = 0; i < call.moves; ++i, ++next) {
        const Move& move = moves[next];
        const std::size_t tag = tag_index(move.tag);
        (void)plan::move_tag(plan_.tags[tag], states_[tag], move.kind == Move::Kind::kResume);
        const double share =
            static_cast<double>(move.bytes.count()) / static_cast<double>(all.count());
        const double seconds = report.seconds * share;
        done.moves.push_back({move.kind, move.tag, move.copies ? move.bytes : Bytes(), Bytes(),
                              move.copies ? seconds : 0, seconds});
      }
    }
  } catch (...) {
    resync();
    throw;
  }
  const arena::Stats after = arena_.stats();
  for (MoveRecord& move : done.moves) {
    move.copied = copied_by(after, move.tag, move.kind) - copied_by(before, move.tag, move.kind);
  }
  return done;
}

// After a failure: a leaving tag may be paused with its contents. A tag that is still arriving
// counts as resident.
void ScheduleExecutor::resync() {
  for (std::size_t t = 0; t < states_.size(); ++t) {
    if (plan_.tags[t].is_outside()) continue;
    const auto regions = arena_.regions(plan_.tags[t].name());
    const bool resident = std::any_of(regions.begin(), regions.end(), [](const auto& r) {
      return r.state != arena::State::kPaused;
    });
    if (states_[t].resident != resident) (void)plan::move_tag(plan_.tags[t], states_[t], resident);
  }
}

bool ScheduleExecutor::fits(const Set& tags) const {
  Bytes sum;
  for (std::size_t t = 0; t < tags.size(); ++t)
    if (tags[t]) sum += plan_.tags[t].bytes;
  return sum <= plan_.peak;
}

bool ScheduleExecutor::leaves(std::size_t tag) const {
  const auto end = plan_.schedule.begin() + static_cast<std::ptrdiff_t>(plan_.cycle());
  return std::any_of(plan_.schedule.begin(), end,
                     [&](const plan::PhaseSchedule& phase) { return !phase.resident[tag]; });
}

Transition ScheduleExecutor::bring(const std::vector<spec::TagId>& tags) {
  Set only(states_.size(), false);
  for (const spec::TagId tag : tags) only[tag_index(tag)] = true;
  Set all = only, staying = only;
  for (std::size_t t = 0; t < states_.size(); ++t) {
    if (!states_[t].resident) continue;
    all[t] = true;
    staying[t] = only[t] || !leaves(t);
  }
  Transition done = move_to(fits(all) ? all : fits(staying) ? staying : only);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (only[i]) states_[i].dirty = true;
  }
  return done;
}

Transition ScheduleExecutor::put_back(const Set& before) {
  Set wanted = before;
  for (std::size_t t = 0; t < states_.size(); ++t) {
    const bool kept = plan_.tags[t].contents != plan::Contents::kScratch && !leaves(t);
    if (states_[t].resident && kept) wanted[t] = true;
  }
  return move_to(fits(wanted) ? wanted : before);
}

}  // namespace neap::bridge

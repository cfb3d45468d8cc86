#include "bridge/schedule_executor.h"

#include <algorithm>
#include <array>

#include "base/format.h"

namespace neap::bridge {
namespace {

template <class Items, class Name>
std::size_t index_of(const Items& items, std::string_view wanted, Name name,
                     std::string_view kind) {
  std::string known;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (name(items[i]) == wanted) return i;
    known += (known.empty() ? "" : ", ") + std::string(name(items[i]));
  }
  throw Error(ErrorCode::kNotFound,
              format("The plan has no {} \"{}\"; it has {}", kind, wanted, known));
}

}  // namespace

ScheduleExecutor::ScheduleExecutor(arena::Arena& arena, const plan::MemoryPlan& plan)
    : arena_(arena),
      plan_(plan),
      resident_(plan.tags.size(), false),
      dirty_(plan.tags.size(), true) {}

std::size_t ScheduleExecutor::tag_index(std::string_view tag) const {
  return index_of(
      plan_.tags, tag, [](const plan::TagPlan& t) -> const std::string& { return t.tag; }, "tag");
}

std::size_t ScheduleExecutor::phase_index(std::string_view phase) const {
  return index_of(
      plan_.phases, phase, [](const plan::PhasePlan& p) -> const std::string& { return p.name; },
      "phase");
}

Bytes ScheduleExecutor::persistent() const {
  Bytes sum;
  for (std::size_t i = 0; i < resident_.size(); ++i) {
    if (resident_[i]) sum += plan_.tags[i].bytes;
  }
  return sum;
}

ScheduleExecutor::Moved ScheduleExecutor::enter(std::size_t phase) {
  const Moved moved = move_to(plan_.schedule[phase].resident);
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    if (plan_.tags[i].write[phase]) dirty_[i] = true;
  }
  return moved;
}

ScheduleExecutor::Moved ScheduleExecutor::move_to(const Set& wanted) {
  Moved moved;
  const auto add = [&](const arena::MoveReport& report) {
    moved.copied += report.copied;
    moved.seconds += report.seconds;
  };
  // Out first: what leaves makes room for what comes.
  for (std::size_t i = 0; i < resident_.size(); ++i) {
    if (!resident_[i] || wanted[i]) continue;
    const bool scratch = plan_.tags[i].contents == plan::Contents::kScratch;
    arena::PauseOptions options;
    options.policy = scratch ? arena::Policy::kDiscard : arena::Policy::kHost;
    options.unchanged = !dirty_[i];
    const std::array<std::string, 1> tag{plan_.tags[i].tag};
    add(value_or_throw(arena_.pause(tag, options)));
    resident_[i] = false;
    dirty_[i] = scratch;
  }
  std::vector<std::string> in;
  for (std::size_t i = 0; i < resident_.size(); ++i) {
    if (wanted[i] && !resident_[i]) in.push_back(plan_.tags[i].tag);
  }
  if (!in.empty()) add(value_or_throw(arena_.resume(in)));
  resident_ = wanted;
  return moved;
}

ScheduleExecutor::Moved ScheduleExecutor::bring(const std::vector<std::string>& tags) {
  Set only(resident_.size(), false);
  Set both = resident_;
  for (const std::string& tag : tags) {
    only[tag_index(tag)] = true;
    both[tag_index(tag)] = true;
  }
  Bytes sum;
  for (std::size_t i = 0; i < both.size(); ++i) {
    if (both[i]) sum += plan_.tags[i].bytes;
  }
  const bool fits = plan_.capacity.is_zero() || sum <= plan_.capacity;
  const Moved moved = move_to(fits ? both : only);
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    if (only[i]) dirty_[i] = true;
  }
  return moved;
}

}  // namespace neap::bridge

#include "plan/search/common_choices.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "plan/search/advice.h"

namespace neap::plan {
namespace {

// The same seconds can differ by the order of sums.
constexpr double kSameTime = 1e-9;
constexpr double kNoRetention = -1;
constexpr unsigned kHalf = 32;
constexpr std::uint64_t kLowHalf = (std::uint64_t{1} << kHalf) - 1;

// Whether ranks along an axis are of several kinds.
bool crosses_kinds(const spec::Mesh& mesh, spec::Axis axis,
                   const std::vector<spec::RankKind>& kinds) {
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::vector<std::int64_t> line = mesh.line(rank, axis);
    if (spec::kind_of(kinds, line.front()) != spec::kind_of(kinds, line.back())) return true;
  }
  return false;
}

// Sorts the slowest kinds first. Kinds that are equally slow, within rounding, are sorted by
// number.
std::vector<std::size_t> slowest_first(std::vector<std::size_t> kinds,
                                       const std::vector<KindOutcome>& outcomes) {
  const auto seconds = [&](std::size_t kind) { return outcomes[kind].seconds; };
  std::sort(kinds.begin(), kinds.end(),
            [&](std::size_t a, std::size_t b) { return seconds(a) > seconds(b); });
  for (auto begin = kinds.begin(); begin != kinds.end();) {
    const double most = seconds(*begin);
    const auto end = std::find_if(begin, kinds.end(), [&](std::size_t kind) {
      return most > seconds(kind) * (1 + kSameTime);
    });
    std::sort(begin, end);
    begin = end;
  }
  return kinds;
}

}  // namespace

std::vector<SharedStage> shared_stages(const spec::Job& job) {
  const std::vector<spec::RankKind> kinds = spec::rank_kinds(job.model_meshes());
  std::vector<SharedStage> out;
  if (kinds.size() == 1) return out;
  const spec::Recipe recipe = spec::describe(job);
  for (const spec::ModelSource& model : recipe.models) {
    const spec::Mesh mesh = job.mesh(model.id);
    const bool divides = crosses_kinds(mesh, spec::Axis::kTensor, kinds) ||
                         crosses_kinds(mesh, spec::Axis::kContext, kinds);
    const bool shards = crosses_kinds(mesh, spec::Axis::kShards, kinds);
    const bool meets = divides || (model.storage.shards_weights && shards);
    const bool trains = model.trained != nullptr;
    if (!trains && !meets) continue;
    ChoiceParts parts{trains && divides, meets || (model.storage.shards_gradients && shards)};
    if (mesh.size(spec::Axis::kPipe) > 1) parts.together = false;
    std::map<std::int64_t, std::vector<std::size_t>> stages;
    for (std::size_t k = 0; k < kinds.size(); ++k)
      stages[mesh.coordinate(kinds[k].first, spec::Axis::kPipe)].push_back(k);
    for (auto& [stage, of] : stages)
      if (of.size() > 1) out.push_back({model.id, std::move(of), parts});
  }
  return out;
}

bool is_chosen_alike(const spec::Job& job, spec::ModelId model) {
  const auto kinds = std::ssize(spec::rank_kinds(job.model_meshes()));
  const std::vector<SharedStage> shared = shared_stages(job);
  return kinds == job.mesh(model).size(spec::Axis::kPipe) ||
         std::any_of(shared.begin(), shared.end(),
                     [&](const SharedStage& stage) { return stage.model == model; });
}

std::vector<double> KindOutcome::to_numbers() const {
  // A double cannot represent the largest number of bytes, so two are used.
  std::vector<double> out = {seconds, static_cast<double>(least.count() >> kHalf),
                             static_cast<double>(least.count() & kLowHalf)};
  if (!choices.variant) return out;
  out.push_back(static_cast<double>(choices.variant->states));
  out.push_back(static_cast<double>(choices.variant->levels.size()));
  for (const int level : choices.variant->levels) out.push_back(level);
  for (const ModelChoice& choice : choices.models) {
    out.push_back(static_cast<double>(choice.model));
    out.push_back(static_cast<double>(choice.homes.update));
    for (const auto home : spec::kHomes) out.push_back(static_cast<double>(choice.homes.*home));
    out.push_back(static_cast<double>(choice.homes.together));
    if (!choice.retention) {
      out.push_back(kNoRetention);
      continue;
    }
    out.push_back(static_cast<double>(choice.retention->blocks.size()));
    for (const spec::BlockRetention& block : choice.retention->blocks)
      for (std::size_t t = 0; t < spec::kSavedTensors; ++t)
        out.push_back(block.keeps(static_cast<spec::SavedTensor>(t)) ? 1 : 0);
  }
  return out;
}

KindOutcome KindOutcome::from_numbers(const std::vector<double>& numbers) {
  auto at = numbers.begin();
  KindOutcome out;
  out.seconds = *at++;
  const auto high = static_cast<std::uint64_t>(*at++);
  out.least = Bytes(high << kHalf | static_cast<std::uint64_t>(*at++));
  if (at == numbers.end()) return out;
  VariantChoice& variant = out.choices.variant.emplace();
  variant.states = static_cast<std::size_t>(*at++);
  variant.levels.resize(static_cast<std::size_t>(*at++));
  for (int& level : variant.levels) level = static_cast<int>(*at++);
  const auto flag = [&] { return *at++ != 0; };
  while (at != numbers.end()) {
    ModelChoice& choice = out.choices.models.emplace_back();
    choice.model = static_cast<spec::ModelId>(static_cast<int>(*at++));
    choice.homes.update = static_cast<spec::UpdateMode>(static_cast<int>(*at++));
    for (const auto home : spec::kHomes)
      choice.homes.*home = static_cast<spec::Home>(static_cast<int>(*at++));
    choice.homes.together = static_cast<std::int64_t>(*at++);
    const double blocks = *at++;
    if (blocks == kNoRetention) continue;
    choice.retention.emplace().blocks.resize(static_cast<std::size_t>(blocks));
    for (spec::BlockRetention& block : choice.retention->blocks)
      for (std::size_t t = 0; t < spec::kSavedTensors; ++t)
        block.set(static_cast<spec::SavedTensor>(t),
                  flag() ? spec::Retention::kKeep : spec::Retention::kRecompute);
  }
  return out;
}

CommonChoices::CommonChoices(const spec::Job& job) : stages_(shared_stages(job)) {}

FixedChoices CommonChoices::fixed(std::size_t kind, std::size_t round) const {
  const Choices& trial = trials_.at(round);
  FixedChoices out{{}, trial.variant};
  for (std::size_t s = 0; s < trial.models.size(); ++s)
    if (stages_[s].has(kind)) out.models.push_back(trial.models[s]);
  return out;
}

FixedChoices CommonChoices::chosen(std::size_t kind, const MemoryPlan& plan) const {
  FixedChoices out{{}, plan.variant};
  for (const SharedStage& stage : stages_)
    if (stage.has(kind)) out.models.push_back(choice_of(plan, stage.model, stage.parts));
  return out;
}

bool CommonChoices::take(std::vector<KindOutcome> outcomes) {
  const std::size_t round = rounds_.size();
  rounds_.push_back(std::move(outcomes));
  if (round == 0) {
    if (!all_planned(0)) return false;
    add_trials();
  } else {
    if (all_planned(round) && (best_ == 0 || seconds(round) < seconds(best_) * (1 - kSameTime)))
      best_ = round;
    // Other kinds' settings do not make a kind faster, so later rounds cannot win.
    if (best_ > 0 && seconds(best_) <= seconds(0) * (1 + kSameTime)) return false;
  }
  const std::size_t next = round + 1;
  if (next < trials_.size() && (next <= kinds_trials_ || best_ == 0)) return true;
  if (best_ == 0 && next > 1) best_ = nearest();
  return false;
}

// For each shared stage, and for the job: the settings of the kind at `place` among those that have
// it, slowest first.
CommonChoices::Choices CommonChoices::of_kinds(const std::vector<KindOutcome>& outcomes,
                                               std::size_t place) const {
  const auto at_place = [&](std::vector<std::size_t> kinds) -> const FixedChoices& {
    kinds = slowest_first(std::move(kinds), outcomes);
    return outcomes[kinds[std::min(place, kinds.size() - 1)]].choices;
  };
  std::vector<std::size_t> all(outcomes.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  Choices out{{}, at_place(std::move(all)).variant};
  for (const SharedStage& stage : stages_)
    out.models.push_back(*choice_for(at_place(stage.kinds).models, stage.model));
  return out;
}

// Adds no trials if all kinds chose the same.
void CommonChoices::add_trials() {
  const std::vector<KindOutcome>& outcomes = rounds_.front();
  std::vector<Choices> trials;
  Choices smallest = of_kinds(outcomes, 0);
  for (std::size_t place = 0; place < outcomes.size(); ++place) {
    Choices trial = of_kinds(outcomes, place);
    if (trial.variant) smallest.variant = smaller_of(*smallest.variant, *trial.variant);
    for (std::size_t s = 0; s < stages_.size(); ++s)
      smallest.models[s] = smaller_of(smallest.models[s], trial.models[s]);
    if (std::count(trials.begin(), trials.end(), trial) == 0) trials.push_back(std::move(trial));
  }
  if (trials.size() < 2) return;
  trials.resize(std::min(trials.size(), kMostTrials));
  trials_.insert(trials_.end(), trials.begin(), trials.end());
  kinds_trials_ = trials.size();
  if (std::find(trials_.begin() + 1, trials_.end(), smallest) == trials_.end())
    trials_.push_back(std::move(smallest));
}

bool CommonChoices::all_planned(std::size_t round) const {
  return std::all_of(rounds_[round].begin(), rounds_[round].end(),
                     [](const KindOutcome& of) { return of.planned(); });
}

double CommonChoices::seconds(std::size_t round) const {
  double most = 0;
  for (const KindOutcome& of : rounds_[round]) most = std::max(most, of.seconds);
  return most;
}

std::size_t CommonChoices::nearest() const {
  const auto least = [&](std::size_t round) {
    Bytes most;
    for (const KindOutcome& of : rounds_[round]) most = std::max(most, of.least);
    return most;
  };
  std::size_t out = rounds_.size() - 1;
  for (std::size_t round = out; round > 0; --round)
    if (least(round) < least(out)) out = round;
  return out;
}

std::optional<std::size_t> CommonChoices::refused() const {
  const std::vector<KindOutcome>& outcomes = rounds_[best_];
  const auto most = std::max_element(
      outcomes.begin(), outcomes.end(),
      [](const KindOutcome& a, const KindOutcome& b) { return a.least < b.least; });
  if (most->planned()) return std::nullopt;
  return static_cast<std::size_t>(most - outcomes.begin());
}

Bytes CommonChoices::least() const {
  const std::optional<std::size_t> kind = refused();
  return kind ? rounds_[best_][*kind].least : Bytes();
}

KindPlans::KindPlans(const spec::Job& job, Target target)
    : job_(job),
      target_(std::move(target)),
      kinds_(spec::rank_kinds(job.model_meshes())),
      kind_(spec::kind_of(kinds_, target_.rank)) {}

Result<KindOutcome> KindPlans::plan(const CommonChoices& common) {
  const FixedChoices fixed = common.fixed(kind_);
  KindOutcome out;
  std::optional<MemoryPlan>& plan = rounds_.emplace_back();
  if (!fixed.empty() && common.chosen(kind_, *rounds_.front()) == fixed) {
    plan = rounds_.front();
  } else {
    Result<PlanOrLeast> found = plan_or_least(job_, target_, fixed);
    if (!found.ok()) return in_kind(found.status());
    plan = std::move(found->plan);
    out.least = found->least;
  }
  if (!plan) return out;
  out.seconds = plan->seconds();
  out.choices = common.chosen(kind_, *plan);
  return out;
}

Result<MemoryPlan> KindPlans::take(const CommonChoices& common) {
  std::optional<MemoryPlan>& plan = rounds_.at(common.round());
  if (!plan) return refusal(common);
  return *std::move(plan);
}

Status KindPlans::refusal(const CommonChoices& common) const {
  return in_kind(make_plan(job_, target_, common.fixed(kind_, common.round())).status());
}

Status KindPlans::in_kind(const Status& status) const {
  if (kinds_.size() == 1) return status;
  const spec::RankKind& kind = kinds_[kind_];
  return Status(status).with_context(
      spec::are_stages(kinds_, job_.model_meshes())
          ? format("planning stage {} of {}", kind.first / kind.count + 1, kinds_.size())
          : format("planning rank {}", kind.first));
}

}  // namespace neap::plan

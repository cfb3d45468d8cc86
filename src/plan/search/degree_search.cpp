#include "plan/search/degree_search.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/parallel_for.h"
#include "base/progress.h"
#include "base/text.h"
#include "plan/results/plan_table.h"
#include "plan/results/plan_words.h"
#include "plan/search/stage_plans.h"

namespace neap::plan {
namespace {

// The same seconds can differ by the order of sums.
constexpr double kSameSeconds = 1e-9;
constexpr std::size_t kShownFits = 12, kShownOthers = 6;

DegreeCandidate plan_candidate(const OpenJob& open, const spec::Degrees& degrees,
                               const Target& target) {
  DegreeCandidate out;
  out.degrees = degrees;
  out.data_ranks = spec::data_ranks(open.job, degrees);
  // Without the file's name, which is the same for all candidates.
  const auto refuse = [&](const Status& status) {
    out.refused = status.message().substr(0, status.message().find(" - while checking"));
    return out;
  };
  const Result<spec::Job> job = load_with(open, degrees);
  if (!job.ok()) return refuse(job.status());
  out.staged = job->has_stages();
  const Result<StagesOrLeast> found = plan_stages_or_least(*job, target);
  if (!found.ok()) return refuse(found.status());
  out.peak = found->least;
  if (!found->plans) return out;
  const StagePlans& plans = *found->plans;
  out.fits = true;
  out.peak = plans.stages[plans.binding()].plan.peak;
  out.seconds = plans.seconds();
  return out;
}

// A progress bar that appears late.
class LateProgress {
 public:
  explicit LateProgress(std::size_t total) : total_(total) {}
  void advance() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (!bar_ && std::chrono::steady_clock::now() - start_ > std::chrono::seconds(2))
      bar_.emplace("Planning", total_, "parallel configurations");
    if (bar_) bar_->update(done_);
  }

 private:
  std::mutex mutex_;
  std::size_t total_, done_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<Progress> bar_;
};

bool comes_before(const DegreeCandidate& a, const DegreeCandidate& b) {
  const auto order = [](const DegreeCandidate& each) {
    return std::tuple(!each.fits, !each.refused.empty(), each.seconds,
                      each.fits ? Bytes() : each.peak, each.degrees);
  };
  return order(a) < order(b);
}

// Among candidates that are as fast as the first, moves the least sharded one to the front.
void put_simplest_first(std::vector<DegreeCandidate>& sorted) {
  const double most = sorted.front().seconds * (1 + kSameSeconds);
  const auto end = std::find_if(sorted.begin(), sorted.end(), [&](const DegreeCandidate& each) {
    return !each.fits || each.seconds > most;
  });
  const auto simplest = std::min_element(
      sorted.begin(), end,
      [](const DegreeCandidate& a, const DegreeCandidate& b) { return a.degrees < b.degrees; });
  if (simplest != end) std::rotate(sorted.begin(), simplest, simplest + 1);
}

std::string degrees_text(const DegreeCandidate& candidate, const spec::AutomaticDegrees& open) {
  std::string out;
  for (std::size_t k = 0; k < spec::kDegreeKeys.size(); ++k)
    if (const spec::DegreeKey& key = spec::kDegreeKeys[k]; spec::is_shown(key, open))
      out += format("{}{} {}", out.empty() ? "" : ", ", key.name, candidate.degrees[k]);
  return out;
}

// Lists each reason once, with the first candidate that has it.
std::string refused_text(const std::vector<DegreeCandidate>& candidates,
                         const spec::AutomaticDegrees& open) {
  struct Reason {
    std::string words, first;
    std::size_t more = 0;
  };
  std::vector<Reason> reasons;
  for (const DegreeCandidate& candidate : candidates) {
    if (candidate.refused.empty()) continue;
    const auto same = std::find_if(reasons.begin(), reasons.end(), [&](const Reason& each) {
      return each.words == candidate.refused;
    });
    if (same == reasons.end()) {
      reasons.push_back({candidate.refused, degrees_text(candidate, open)});
    } else {
      ++same->more;
    }
  }
  std::string out = "Not valid\n";
  for (std::size_t i = 0; i < std::min(reasons.size(), kShownOthers); ++i)
    out += format("  {}{}: {}\n", reasons[i].first,
                  reasons[i].more > 0 ? format(" and {} more", reasons[i].more) : "",
                  reasons[i].words);
  if (reasons.size() > kShownOthers)
    out += format("  and more, for {} more reasons (--json)\n", reasons.size() - kShownOthers);
  return out;
}

std::string needs_text(const DegreeCandidate& candidate) {
  if (candidate.peak == Bytes(~0ull)) return "more host memory than the machine has";
  return capacity_text(candidate.peak);
}

}  // namespace

Result<spec::Job> load_with(const OpenJob& open, const spec::Degrees& degrees) {
  std::vector<std::string> overrides = open.overrides;
  for (std::string& words : spec::assignments(open.job, degrees))
    overrides.push_back(std::move(words));
  spec::Job job;
  job.launched_ranks = open.job.launched_ranks;
  job.launched_node_ranks = open.job.launched_node_ranks;
  NEAP_TRY(spec::Job::load(open.file, overrides, job));
  return job;
}

DegreeChoice choose_degrees(const OpenJob& open, const Target& target) {
  const std::vector<spec::Degrees> all = spec::possible_degrees(open.job);
  DegreeChoice out;
  out.ranks = open.job.ranks();
  out.capacity = target.capacity;
  out.open = open.job.parallel.automatic;
  out.candidates.resize(all.size());
  LateProgress progress(all.size());
  parallel_for(all.size(), std::max(1U, std::thread::hardware_concurrency()), [&](std::size_t i) {
    out.candidates[i] = plan_candidate(open, all[i], target);
    progress.advance();
  });
  std::sort(out.candidates.begin(), out.candidates.end(), comes_before);
  if (!out.candidates.empty()) put_simplest_first(out.candidates);
  if (out.fits()) out.overrides = spec::assignments(open.job, out.candidates.front().degrees);
  return out;
}

Status DegreeChoice::refusal() const {
  if (candidates.empty() || !candidates.front().refused.empty())
    return {ErrorCode::kInvalidArgument,
            format("No parallel configuration is valid for {} ranks. For {}: {}", ranks,
                   candidates.empty() ? "none" : degrees_text(candidates.front(), open),
                   candidates.empty() ? "" : candidates.front().refused)};
  const DegreeCandidate& nearest = candidates.front();
  const auto refused =
      std::count_if(candidates.begin(), candidates.end(),
                    [](const DegreeCandidate& each) { return !each.refused.empty(); });
  return {ErrorCode::kDoesNotFit,
          format("None of the {} parallel configurations for {} ranks fits into {} per rank. The "
                 "nearest is {}: it needs {}. `neap plan --fit SIZE --ranks {}` looks for smaller "
                 "micro-batches, too",
                 std::ssize(candidates) - refused, ranks, capacity, degrees_text(nearest, open),
                 needs_text(nearest), ranks)};
}

std::string DegreeChoice::to_text() const {
  std::vector<std::string> head;
  for (const spec::DegreeKey& key : spec::kDegreeKeys)
    if (spec::is_shown(key, open)) head.emplace_back(key.name);
  head.insert(head.end(), {"data", "memory", "s per step"});
  Table table(head);
  std::size_t fitting = 0, larger = 0, refused = 0;
  for (const DegreeCandidate& candidate : candidates) {
    if (!candidate.refused.empty()) {
      ++refused;
      continue;
    }
    if (candidate.fits ? ++fitting > kShownFits : ++larger > kShownOthers) continue;
    std::vector<std::string> row;
    for (std::size_t k = 0; k < spec::kDegreeKeys.size(); ++k)
      if (spec::is_shown(spec::kDegreeKeys[k], open))
        row.push_back(std::to_string(candidate.degrees[k]));
    row.push_back(std::to_string(candidate.data_ranks));
    row.push_back(candidate.fits ? to_string(candidate.peak) : needs_text(candidate));
    row.push_back(candidate.fits ? format("{:.4g}", candidate.seconds) : "does not fit");
    table.add(std::move(row));
  }
  std::string out =
      format("Parallel configurations for {} ranks: {} fit, {} do not fit, {} are not valid\n{}",
             ranks, fitting, larger, refused, table.text());
  if (fitting > kShownFits || larger > kShownOthers) out += "--json has the others\n";
  if (refused > 0) out += refused_text(candidates, open);
  if (fits()) out += format("Chosen: {}\n", joined(overrides, " "));
  return out;
}

Json DegreeChoice::to_json() const {
  Json list = Json::array();
  for (const DegreeCandidate& candidate : candidates) {
    Json degrees = Json::object();
    for (std::size_t k = 0; k < spec::kDegreeKeys.size(); ++k)
      if (spec::is_shown(spec::kDegreeKeys[k], open))
        degrees[std::string(spec::kDegreeKeys[k].name)] = candidate.degrees[k];
    degrees["data"] = candidate.data_ranks;
    Json each = {{"parallel_sizes", std::move(degrees)}, {"fits", candidate.fits}};
    if (candidate.refused.empty()) {
      each[candidate.fits ? "peak" : "needs"] = candidate.peak.count();
    } else {
      each["refused"] = candidate.refused;
    }
    if (candidate.fits) each["seconds"] = candidate.seconds;
    list.push_back(std::move(each));
  }
  return {{"overrides", overrides}, {"candidates", std::move(list)}};
}

}  // namespace neap::plan

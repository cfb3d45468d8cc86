#include "rlhf/run/open_degrees.h"

#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/run_collectively.h"
#include "rlhf/trainer/agreed_plan.h"
#include "rlhf/trainer/run_state.h"
#include "train/checkpoint.h"

namespace neap::rlhf {
namespace {

Result<spec::Job> read_with(const plan::OpenJob& open, const spec::Degrees& degrees) {
  NEAP_TRY_ASSIGN(spec::Job job, plan::load_with(open, degrees));
  job.device.ordinal = open.job.device.ordinal;  // each rank has its own device
  return job;
}

// The sizes of the checkpoint that the run resumes from. If it cannot be read, the run reports that
// later.
std::optional<spec::Degrees> saved_degrees_of(const spec::Job& job) {
  try {
    const auto found = train::find_checkpoint(job.output_folder(), job.trainer.resume_mode,
                                              job.resolve(job.trainer.resume_mode), check_whole);
    if (!found) return std::nullopt;
    return saved_degrees(read_run_state(found->folder), job);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Runs on the first rank.
spec::Degrees choose(const plan::OpenJob& open, const plan::Target& target) {
  if (const auto saved = saved_degrees_of(open.job); saved && read_with(open, *saved).ok()) {
    log::info(format("parallel: {} as in the checkpoint that the run resumes from",
                     joined(spec::assignments(open.job, *saved), " ")));
    return *saved;
  }
  const plan::DegreeChoice choice = plan::choose_degrees(open, target);
  if (!choice.fits()) throw_if_error(choice.refusal());
  const plan::DegreeCandidate& first = choice.candidates.front();
  log::info(
      format("parallel: {}, the fastest of {} configurations for {} ranks: planned "
             "{:.3g} s per step, {} per rank",
             joined(choice.overrides, " "), choice.candidates.size(), choice.ranks, first.seconds,
             first.peak));
  return first.degrees;
}

}  // namespace

spec::Job close_degrees(const plan::OpenJob& open, const Launch& launch) {
  parallel::Communicator& ranks = *launch.ranks;
  // Uses the smallest memory, because the plan has to fit on every rank.
  const plan::Target target = least_target(launch.device.target, {0, ranks.size()}, ranks);
  spec::Degrees degrees{};
  parallel::run_collectively(ranks, [&] {
    if (ranks.first()) degrees = choose(open, target);
  });
  std::vector<double> numbers;
  if (ranks.first()) numbers.assign(degrees.begin(), degrees.end());
  numbers = ranks.join(numbers);
  for (std::size_t k = 0; k < degrees.size(); ++k)
    degrees[k] = static_cast<std::int64_t>(numbers.at(k));
  return value_or_throw(read_with(open, degrees));
}

}  // namespace neap::rlhf

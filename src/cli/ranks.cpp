#include "cli/ranks.h"

#include <chrono>
#include <exception>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "cli/command.h"
#include "parallel/run_collectively.h"
#include "rlhf/run/open_degrees.h"
#include "spec/keys/default_lengths.h"

namespace neap::cli {
namespace {

constexpr std::chrono::seconds kFirstRankSpeaks{3};

}  // namespace

int run_on_ranks(const std::filesystem::path& config, const std::vector<std::string>& overrides,
                 const std::function<int(const spec::Job&, const rlhf::Launch&)>& body) {
  const auto environment = value_or_throw(parallel::Environment::detect());
  if (environment.rank > 0) {
    log::set_prefix(format("rank {}: ", environment.rank));
    if (log::level() == log::Level::kInfo) log::set_level(log::Level::kWarn);
  }
  spec::Job job;
  job.launched_ranks = environment.size;
  job.launched_node_ranks = environment.local_size;
  const Status loaded = spec::Job::load(config, overrides, job, spec::OpenDegrees::kAuto);
  // The first rank reports the same failure and then ends the others, so wait for it. If it does
  // not, its files differ, and this rank reports its own failure.
  if (!loaded.ok() && environment.rank > 0) std::this_thread::sleep_for(kFirstRankSpeaks);
  throw_if_error(loaded);
  const auto tell = [&] {
    if (environment.rank > 0) return;
    for (const std::string& warning : job.warnings) log::warn(warning);
    if (const std::string adapted = spec::adapted_text(job); !adapted.empty()) log::info(adapted);
  };
  const bool open = job.parallel.automatic.any();
  if (!open) tell();
  const rlhf::Launch launch = rlhf::join_ranks(job, environment);
  try {
    if (open) {
      job = rlhf::close_degrees({config, overrides, job}, launch);
      tell();
    }
    return body(job, launch);
  } catch (const parallel::CollectiveError& e) {
    return e.mine() ? fail(e) : exit_code(e.status());
  } catch (const std::exception& e) {
    const int code = fail(e);
    // The other ranks may be waiting for this one in a collective.
    launch.ranks->abort(code);
    return code;
  }
}

}  // namespace neap::cli

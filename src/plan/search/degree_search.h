// Chooses the parallel sizes that a job leaves open ("auto", spec/keys/degrees.h): the valid combination
// whose plan fits with the fewest seconds.
//
// Order     each candidate is the job with its sizes filled in. It is read, checked and adapted to
//           its ranks, then planned for each kind of rank (stage_plans.h). Among equally fast
//           candidates the least sharded one wins.
// Threads   stateless functions; candidates are planned on several threads.
// Failure   kInvalidArgument for a configuration that cannot be read. An invalid candidate stays in
//           the list with its reason.
// Cost      a plan for each stage of each candidate: 5 to 100 ms.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "plan/results/memory_plan.h"
#include "spec/keys/degrees.h"

namespace neap::plan {

struct DegreeCandidate {
  spec::Degrees degrees{};
  std::int64_t data_ranks = 1;
  bool staged = false;  ///< some model has pipeline stages
  bool fits = false;
  Bytes peak;           ///< of the rank that needs most; its minimum capacity if it does not fit
  double seconds = 0;   ///< of a step, if it fits
  std::string refused;  ///< why it is invalid at any capacity; empty: valid
};

struct DegreeChoice {
  std::int64_t ranks = 1;
  Bytes capacity;
  spec::AutomaticDegrees open{};  ///< the keys that were open
  /// Candidates that fit come first, fastest first; then the others, by missing memory.
  std::vector<DegreeCandidate> candidates;
  std::vector<std::string> overrides;  ///< those of the first candidate; empty if nothing fits
  [[nodiscard]] bool fits() const { return !candidates.empty() && candidates.front().fits; }
  /// Why nothing fits: the closest candidate and what it needs.
  [[nodiscard]] Status refusal() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;  ///< docs/json.md
};

/// A job with open parallel sizes, and its file and overrides.
struct OpenJob {
  std::filesystem::path file;
  std::vector<std::string> overrides;
  spec::Job job;
};
/// The job with these sizes in place of the open ones.
[[nodiscard]] Result<spec::Job> load_with(const OpenJob& open, const spec::Degrees& degrees);
/// Shows progress on stderr if it takes longer than two seconds.
[[nodiscard]] DegreeChoice choose_degrees(const OpenJob& open, const Target& target);

}  // namespace neap::plan

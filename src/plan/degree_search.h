// Which degrees of the keys that a job leaves open ("auto", spec/degrees.h) its ranks take: of all that go together, those
// whose plan fits and has the fewest seconds.
//
// Order    each candidate is the job with its degrees written out: read, checked and fitted to its ranks, then planned
//          for each kind of rank (stage_plans.h), which fits by memory and counts the step. Of equals the one counts
//          that divides least.
// Threads  functions without state; candidates are planned on several threads.
// Failure  kInvalidArgument for a configuration that cannot be read; a candidate that is refused is one of the list.
// Cost     a plan for each stage of each candidate: 5 to 100 ms.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/memory_plan.h"
#include "spec/degrees.h"

namespace neap::plan {

struct DegreeCandidate {
  spec::Degrees degrees{};
  std::int64_t data_ranks = 1;
  bool staged = false;  ///< stages divide a model
  bool fits = false;
  Bytes peak;  ///< of the rank that needs most; where it does not fit, the least that it needs
  double seconds = 0;   ///< of a step, where it fits
  std::string refused;  ///< why it cannot be, whatever the memory; empty: it can
};

struct DegreeChoice {
  std::int64_t ranks = 1;
  Bytes capacity;
  spec::AutomaticDegrees open{};  ///< the keys that it is about
  std::vector<DegreeCandidate>
      candidates;  ///< those that fit, fastest first; those that do not, nearest first
  std::vector<std::string> overrides;  ///< the first one's; none where nothing fits
  [[nodiscard]] bool fits() const { return !candidates.empty() && candidates.front().fits; }
  /// Why nothing fits: what came nearest, and what it needs.
  [[nodiscard]] Status refusal() const;
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;  ///< docs/plan-json.md
};

/// A job with open degrees, and where it is read from.
struct OpenJob {
  std::filesystem::path file;
  std::vector<std::string> overrides;
  spec::Job job;
};
/// Shows its progress on stderr once it has taken two seconds.
[[nodiscard]] DegreeChoice choose_degrees(const OpenJob& open, const Target& target);

}  // namespace neap::plan

// W&B or MLflow, through a process of the user's python3 that has their library.
//
// Failure   never the training's: a process that cannot start, ends or hangs is one warning, and what
//           is logged afterwards is dropped.
// Threads   one owner at a time; a thread of its own talks to the process.
// Cost      log() puts a line into a queue of at most kMostLines. finish() waits up to TrackerOptions::finish_seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/json.h"

namespace neap::report {

struct TrackerOptions {
  std::string kind;              ///< "wandb", "mlflow"
  std::filesystem::path folder;  ///< the run's; holds KIND.json, which names the run for a resume
  std::string project, experiment;
  Json config = Json::object();  ///< of the job
  bool resumed = false;          ///< goes on with the run that KIND.json names
  double finish_seconds = 30;    ///< that finish() waits at most
};

class Tracker {
 public:
  static constexpr std::size_t kMostLines = 4096;

  explicit Tracker(const TrackerOptions& options);
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;
  /// Calls finish().
  ~Tracker();

  /// NaN and infinities are left out, as JSON lacks them.
  void log(std::uint64_t step, const std::map<std::string, double>& metrics);
  /// Until the process has sent everything and ended.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::report

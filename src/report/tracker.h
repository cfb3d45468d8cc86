// Logs to W&B or MLflow, through a process of the user's python3 that has their library.
//
// Failure   never affects the training. A process that cannot start, ends or hangs causes one
//           warning, and later values are dropped.
//
// Threads   one owner at a time; a separate thread talks to the process.
//
// Cost      log() adds a line to a queue of at most kMostLines. finish() waits up to
//           TrackerOptions::finish_seconds.
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
  std::filesystem::path folder;  ///< the run's folder; KIND.json in it names the run for a resume
  std::string project, experiment;
  Json config = Json::object();  ///< the job's settings
  bool resumed = false;          ///< continues the run that KIND.json names
  double finish_seconds = 30;    ///< maximum wait of finish()
};

class Tracker {
 public:
  static constexpr std::size_t kMostLines = 4096;

  explicit Tracker(const TrackerOptions& options);
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;
  /// Calls finish().
  ~Tracker();

  /// NaN and infinities are omitted, because JSON lacks them.
  void log(std::uint64_t step, const std::map<std::string, double>& metrics);
  /// Waits until the process has sent everything and ended.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::report

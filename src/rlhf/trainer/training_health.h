// Detects from metrics that a training learns nothing or diverges. Each sign gives one warning with
// advice.
//
// A sign counts if it holds for several steps in a row; thresholds are in training_health.cpp. A
// warning is given once per run, including resumed runs.
//
// Threads   one owner at a time.
// Cost      a few look-ups per step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "spec/job/job.h"

namespace neap::rlhf {

class TrainingHealth {
 public:
  using Metrics = std::map<std::string, double>;
  struct Warning {
    std::string sign;  ///< "truncated", "equal_scores"; must not change between versions
    std::string text;
  };

  /// `job` must outlive it.
  explicit TrainingHealth(const spec::Job& job);

  /// The warnings that this step's metrics cause.
  [[nodiscard]] std::vector<Warning> note(const Metrics& metrics);
  /// For a resumed run: replays its rows of metrics.jsonl in order, which show how the run began.
  void replay(const Json& row);
  /// Sets the signs that were already warned about. Call it after replay().
  void set_warned(const std::set<std::string>& signs);

 private:
  struct Sign {
    std::string name;
    int steps;  ///< consecutive steps until it counts
    /// The problem and its remedy; nullopt if everything is fine.
    std::function<std::optional<std::string>(const Metrics&)> look;
    int held = 0;
    bool warned = false;
  };
  /// A metric over the first steps of the run.
  struct Start {
    double sum = 0, least_of_all = 0;
    int steps = 0;
    void add(double value);
    [[nodiscard]] std::optional<double> mean() const;
    /// The smallest value, from the first step on.
    [[nodiscard]] std::optional<double> least() const;
  };

  void add_reward_signs();
  void add_collapse_signs();
  void add_divergence_signs();
  void add_loss_sign();
  void begin(const Metrics& metrics);
  std::vector<Warning> look(const Metrics& metrics);

  const spec::Job& job_;
  std::vector<Sign> signs_;
  Start entropy_, length_, loss_;
};

}  // namespace neap::rlhf

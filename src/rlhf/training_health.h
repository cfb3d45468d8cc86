// Signs that a training learns nothing or falls apart, seen in its metrics: one warning each, with what
// to change.
//
// A sign counts when it holds for several steps in a row; the bounds are in training_health.cpp. A
// warning is given once a run, resumed runs included.
//
// Threads   one owner at a time.   Cost   a few look-ups a step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "spec/job.h"

namespace neap::rlhf {

class TrainingHealth {
 public:
  using Metrics = std::map<std::string, double>;
  struct Warning {
    std::string sign;  ///< "truncated", "equal_scores": stays the same between versions
    std::string text;
  };

  /// The job outlives it.
  explicit TrainingHealth(const spec::Job& job);

  /// What begins to be worth saying with this step's metrics.
  [[nodiscard]] std::vector<Warning> note(const Metrics& metrics);
  /// Of a resumed run, in turn: its rows of metrics.jsonl, which say how it began.
  void replay(const Json& row);
  /// Then the signs that it has warned of.
  void set_warned(const std::set<std::string>& signs);

 private:
  struct Sign {
    std::string name;
    int steps;  ///< in a row, until it counts
    /// What is wrong and what to do; nullopt: nothing is.
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
    [[nodiscard]] std::optional<double> least() const;  ///< from the first step on
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

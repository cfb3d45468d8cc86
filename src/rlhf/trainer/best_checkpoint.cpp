#include "rlhf/trainer/best_checkpoint.h"

#include <cmath>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "rlhf/trainer/watched_metric.h"
#include "train/checkpoint.h"

namespace neap::rlhf {

bool BestCheckpoint::offer(std::int64_t step, const Metrics& metrics) {
  if (config_->best_metric.empty()) return false;
  const double value = watched_metric("trainer.best_metric", config_->best_metric, metrics);
  if (std::isnan(value)) return false;
  if (step == 0) {
    start_ = value;
    return false;
  }
  const bool better = !best_ || is_better(config_->best_mode, value, best_->value);
  if (better) best_ = Best{step, value};
  return better;
}

std::optional<std::int64_t> BestCheckpoint::step() const {
  return best_ ? std::optional(best_->step) : std::nullopt;
}

std::optional<double> BestCheckpoint::better_start() const {
  const bool better = best_ && start_ && is_better(config_->best_mode, *start_, best_->value);
  return better ? start_ : std::nullopt;
}

Json BestCheckpoint::to_json() const {
  if (!best_ && !start_) return nullptr;
  Json out = {{"metric", config_->best_metric}, {"mode", config_->best_mode}};
  if (start_) out["start"] = *start_;
  if (best_) {
    out["step"] = best_->step;
    out["value"] = best_->value;
  }
  return out;
}

void BestCheckpoint::restore(const Json& saved, const std::filesystem::path& root) {
  best_.reset();
  start_.reset();
  if (!saved.is_object() || saved.value("metric", Json()) != config_->best_metric ||
      saved.value("mode", Json()) != config_->best_mode)
    return;
  if (const auto start = saved.find("start"); start != saved.end() && start->is_number())
    start_ = start->get<double>();
  const auto step = saved.find("step");
  const auto value = saved.find("value");
  if (step == saved.end() || !step->is_number_integer() || value == saved.end() ||
      !value->is_number())
    return;
  const auto folder = train::checkpoint_folder(root, step->get<std::int64_t>());
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) {
    best_ = Best{step->get<std::int64_t>(), value->get<double>()};
  } else {
    log::warn(
        format("{}, the best checkpoint so far, is not there any more; the next validation "
               "starts anew",
               folder.string()));
  }
}

}  // namespace neap::rlhf

#include "rlhf/trainer/stop_target.h"

#include "base/format.h"
#include "rlhf/trainer/watched_metric.h"

namespace neap::rlhf {

void StopTarget::note(std::int64_t step, const Metrics& metrics) {
  if (config_->stop_metric.empty()) return;
  const double value = watched_metric("trainer.stop_metric", config_->stop_metric, metrics);
  if (step > 0) last_ = Seen{step, value};
}

bool StopTarget::reached() const {
  return last_ && (last_->value == config_->stop_value ||
                   is_better(config_->stop_mode, last_->value, config_->stop_value));
}

std::string StopTarget::text() const {
  return format("{} {:.4g} at step {} (trainer.stop_value {:.4g})", config_->stop_metric,
                last_->value, last_->step, config_->stop_value);
}

Json StopTarget::to_json() const {
  if (!last_) return nullptr;
  return {{"metric", config_->stop_metric}, {"step", last_->step}, {"value", last_->value}};
}

void StopTarget::restore(const Json& saved, std::int64_t step) {
  last_.reset();
  if (!saved.is_object() || config_->stop_metric.empty() ||
      saved.value("metric", Json()) != config_->stop_metric)
    return;
  const auto at = saved.find("step"), value = saved.find("value");
  if (at == saved.end() || *at != step || value == saved.end() || !value->is_number()) return;
  last_ = Seen{step, value->get<double>()};
}

}  // namespace neap::rlhf

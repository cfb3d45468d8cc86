#include "rlhf/trainer/watched_metric.h"

#include "base/format.h"
#include "base/status.h"

namespace neap::rlhf {

double watched_metric(std::string_view key, const std::string& metric, const Metrics& metrics) {
  if (const auto found = metrics.find(metric); found != metrics.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : metrics) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kInvalidArgument,
              format("{} is \"{}\"; validation gives {}", key, metric, known));
}

}  // namespace neap::rlhf

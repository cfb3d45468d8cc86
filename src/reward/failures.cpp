#include "reward/failures.h"

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"

namespace neap::reward {
namespace {
constexpr std::size_t kShown = 120;  // bytes
}  // namespace

std::string with_row(std::string_view text, const Response& response) {
  return format("{}; the row is {}{}, the response \"{}\"", text,
                response.where.empty() ? "" : format("{}: ", response.where),
                excerpt(json_text(*response.row), kShown), excerpt(response.text, kShown));
}

void warn_of_defaults(const spec::RewardFunctionConfig& config, std::size_t count, std::size_t all,
                      std::string_view why) {
  log::warn(format("Reward \"{}\": {} of {} responses get default_score {}: {}",
                   config.metric_name(), count, all, config.default_score, why));
}

}  // namespace neap::reward

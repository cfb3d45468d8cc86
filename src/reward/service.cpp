#include "reward/service.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "reward/ground_truth.h"

namespace neap::reward {
namespace {

Status wrong(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLimit = 120;
  std::string out(text.substr(0, kLimit));
  return text.size() > kLimit ? out + "..." : out;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<double> number_in(const Json& value, std::size_t item) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return wrong(format("gave {} as the score of item {}; a finite number is wanted",
                      shown(dump(value)), item));
}

Result<Score> score_in(const Json& value, std::size_t item, const std::vector<std::string>& log) {
  Score out;
  out.parts.assign(log.size(), std::numeric_limits<double>::quiet_NaN());
  if (!value.is_object()) {
    NEAP_TRY_ASSIGN(out.value, number_in(value, item));
    return out;
  }
  NEAP_TRY_ASSIGN(out.value, number_in(value.value("score", Json()), item));
  for (std::size_t i = 0; i < log.size(); ++i) {
    const auto at = value.find(log[i]);
    if (at == value.end()) continue;
    if (at->is_boolean()) {
      out.parts[i] = at->get<bool>() ? 1 : 0;
    } else if (at->is_number()) {
      out.parts[i] = at->get<double>();
    }
  }
  return out;
}

class Service final : public RewardFunction {
 public:
  Service(const spec::RewardFunctionConfig& config, const Setting& setting,
          std::unique_ptr<Transport> transport)
      : config_(config), prompt_key_(setting.prompt_key), transport_(std::move(transport)) {}

  [[nodiscard]] std::vector<std::string> part_names() const override { return config_.log; }
  [[nodiscard]] Status check(const Json& row) const override {
    return config_.ground_truth.empty() ? Status()
                                        : Status(ground_truths(row, config_.ground_truth).status());
  }
  [[nodiscard]] Result<std::vector<Score>> score(std::span<const Response> responses) override;

 private:
  [[nodiscard]] std::string request(std::span<const Response> batch) const;

  spec::RewardFunctionConfig config_;
  std::string prompt_key_;
  std::unique_ptr<Transport> transport_;
};

std::string Service::request(std::span<const Response> batch) const {
  Json items = Json::array();
  for (const Response& response : batch) {
    const Json& row = *response.row;
    const auto truths = ground_truths(row, config_.ground_truth);
    Json truth;
    if (truths.ok()) truth = truths->size() == 1 ? Json(truths->front()) : Json(*truths);
    items.push_back({{"prompt", row.value(prompt_key_, Json())},
                     {"response", response.text},
                     {"truncated", response.truncated},
                     {"ground_truth", std::move(truth)},
                     {"row", row}});
  }
  return dump({{"items", std::move(items)}}) + "\n";
}

Result<std::vector<Score>> Service::score(std::span<const Response> responses) {
  const auto size = static_cast<std::size_t>(config_.batch_size);
  std::vector<std::string> requests;
  for (std::size_t at = 0; at < responses.size(); at += size)
    requests.push_back(request(responses.subspan(at, std::min(size, responses.size() - at))));
  std::vector<std::optional<Score>> scores(responses.size());
  const Status status = transport_->run(requests, [&](std::size_t i, std::string_view reply) {
    const std::size_t first = i * size;
    auto parsed = parse_reply(reply, std::min(size, responses.size() - first), config_.log);
    if (!parsed.ok()) return Status(parsed.status());
    std::move(parsed->begin(), parsed->end(), scores.begin() + static_cast<std::ptrdiff_t>(first));
    return Status();
  });
  if (!status.ok() && config_.on_failure != "default") return status;
  std::vector<Score> out;
  std::size_t missing = 0;
  for (std::optional<Score>& score : scores) {
    missing += score ? 0U : 1U;
    if (!score)
      score =
          Score{config_.default_score,
                std::vector<double>(config_.log.size(), std::numeric_limits<double>::quiet_NaN())};
    out.push_back(std::move(*score));
  }
  if (missing > 0)
    log::warn(format("Reward \"{}\": {} of {} responses get default_score {}: {}",
                     config_.metric_name(), missing, out.size(), config_.default_score,
                     status.message()));
  return out;
}

}  // namespace

Result<std::vector<Score>> parse_reply(std::string_view reply, std::size_t count,
                                       const std::vector<std::string>& log) {
  const auto json = parse_json(reply, "reply");
  if (!json.ok()) return wrong(format("answered with what is not JSON: {}", shown(reply)));
  const Json& list = json->is_object() && json->contains("scores") ? (*json)["scores"] : *json;
  if (!list.is_array())
    return wrong(format("answered {}; {{\"scores\": [...]}} is wanted", shown(reply)));
  if (list.size() != count) return wrong(format("gave {} scores for {} items", list.size(), count));
  std::vector<Score> out;
  for (std::size_t i = 0; i < count; ++i) {
    NEAP_TRY_ASSIGN(Score score, score_in(list[i], i, log));
    out.push_back(std::move(score));
  }
  return out;
}

std::unique_ptr<RewardFunction> make_service(const spec::RewardFunctionConfig& config,
                                             const Setting& setting,
                                             std::unique_ptr<Transport> transport) {
  return std::make_unique<Service>(config, setting, std::move(transport));
}

}  // namespace neap::reward

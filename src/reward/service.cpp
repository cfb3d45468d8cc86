#include "reward/service.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "reward/ground_truth.h"

namespace neap::reward {
namespace {

Status wrong_reply(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}

std::string shown(std::string_view text) {
  return excerpt(text, 120);
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<double> number_in(const Json& value, std::size_t item) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return wrong_reply(format("gave {} as the score of item {}; a finite number is wanted",
                            shown(dump(value)), item));
}

constexpr double kNoScore = std::numeric_limits<double>::quiet_NaN();

// What a score has besides its number, for people: its reason, else the rest.
std::string reason_in(const Json& score) {
  const auto reason = score.find("reason");
  if (reason != score.end() && reason->is_string()) return reason->get<std::string>();
  Json rest = score;
  rest.erase("score");
  return rest.empty() ? std::string() : shown(dump(rest));
}

Result<Score> score_in(const Json& value, std::size_t item, const ReplyShape& shape) {
  const std::vector<std::string>& log = shape.log;
  Score out;
  out.parts.assign(log.size(), kNoScore);
  if (shape.may_skip && value.is_null()) {
    out.value = kNoScore;
    return out;
  }
  if (!value.is_object()) {
    NEAP_TRY_ASSIGN(out.value, number_in(value, item));
    return out;
  }
  NEAP_TRY_ASSIGN(out.value, number_in(value.value("score", Json()), item));
  out.reason = reason_in(value);
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
    // A function takes whatever the field holds.
    if (takes_raw_truth() && !config_.ground_truth.empty() &&
        ground_truth_field(row, config_.ground_truth) == nullptr)
      return {ErrorCode::kCorrupt, format("field \"{}\" is missing", config_.ground_truth)};
    if (takes_raw_truth()) return {};
    return config_.ground_truth.empty() ? Status()
                                        : Status(ground_truths(row, config_.ground_truth).status());
  }
  [[nodiscard]] Result<std::vector<Score>> score(std::span<const Response> responses) override;

 private:
  [[nodiscard]] std::string request(std::span<const Response> batch) const;
  [[nodiscard]] Json truth_of(const Json& row) const;
  [[nodiscard]] Status take(std::string_view reply, std::span<const Response> batch,
                            std::span<std::optional<Score>> scores) const;
  [[nodiscard]] bool takes_raw_truth() const { return config_.kind == spec::RewardKind::kPython; }

  spec::RewardFunctionConfig config_;
  std::string prompt_key_;
  std::unique_ptr<Transport> transport_;
};

Json Service::truth_of(const Json& row) const {
  if (takes_raw_truth()) {
    const Json* const value = ground_truth_field(row, config_.ground_truth);
    return value == nullptr ? Json() : *value;
  }
  const auto truths = ground_truths(row, config_.ground_truth);
  if (!truths.ok()) return {};
  return truths->size() == 1 ? Json(truths->front()) : Json(*truths);
}

std::string Service::request(std::span<const Response> batch) const {
  Json items = Json::array();
  for (const Response& response : batch) {
    const Json& row = *response.row;
    items.push_back({{"prompt", row.value(prompt_key_, Json())},
                     {"response", response.text},
                     {"truncated", response.truncated},
                     {"ground_truth", truth_of(row)},
                     {"row", row}});
  }
  return dump({{"items", std::move(items)}}) + "\n";
}

// An error names the row that it is about.
Status Service::take(std::string_view reply, std::span<const Response> batch,
                     std::span<std::optional<Score>> scores) const {
  if (const auto json = parse_json(reply, "reply");
      json.ok() && json->is_object() && json->contains("error")) {
    const Json item = json->value("item", Json());
    const Json text = (*json)["error"];
    std::string message =
        format("failed: {}", text.is_string() ? text.get<std::string>() : dump(text));
    if (item.is_number_unsigned() && item.get<std::size_t>() < batch.size()) {
      const Response& about = batch[item.get<std::size_t>()];
      message += format("; the row is {}{}, the response \"{}\"",
                        about.where.empty() ? "" : format("{}: ", about.where),
                        shown(dump(*about.row)), shown(about.text));
    }
    return wrong_reply(std::move(message));
  }
  NEAP_TRY_ASSIGN(auto parsed, parse_reply(reply, {batch.size(), config_.log, takes_raw_truth()}));
  std::move(parsed.begin(), parsed.end(), scores.begin());
  return {};
}

Result<std::vector<Score>> Service::score(std::span<const Response> responses) {
  const auto size = static_cast<std::size_t>(config_.batch_size);
  std::vector<std::string> requests;
  for (std::size_t at = 0; at < responses.size(); at += size)
    requests.push_back(request(responses.subspan(at, std::min(size, responses.size() - at))));
  std::vector<std::optional<Score>> scores(responses.size());
  const Status status = transport_->run(requests, [&](std::size_t i, std::string_view reply) {
    const std::size_t first = i * size;
    return take(reply, responses.subspan(first, std::min(size, responses.size() - first)),
                std::span(scores).subspan(first));
  });
  const bool stopped = status.code() == ErrorCode::kCancelled;
  if (!status.ok() && (stopped || config_.on_failure != "default")) return status;
  std::vector<Score> out;
  std::size_t missing = 0;
  for (std::optional<Score>& score : scores) {
    missing += score ? 0U : 1U;
    if (!score)
      score = Score{config_.default_score, std::vector<double>(config_.log.size(), kNoScore)};
    out.push_back(std::move(*score));
  }
  if (missing > 0)
    log::warn(format("Reward \"{}\": {} of {} responses get default_score {}: {}",
                     config_.metric_name(), missing, out.size(), config_.default_score,
                     status.message()));
  return out;
}

}  // namespace

Result<std::vector<Score>> parse_reply(std::string_view reply, const ReplyShape& shape) {
  const std::size_t count = shape.count;
  const auto json = parse_json(reply, "reply");
  if (!json.ok()) return wrong_reply(format("answered with what is not JSON: {}", shown(reply)));
  const Json& list = json->is_object() && json->contains("scores") ? (*json)["scores"] : *json;
  if (!list.is_array())
    return wrong_reply(format("answered {}; {{\"scores\": [...]}} is wanted", shown(reply)));
  if (list.size() != count)
    return wrong_reply(format("gave {} scores for {} items", list.size(), count));
  std::vector<Score> out;
  for (std::size_t i = 0; i < count; ++i) {
    NEAP_TRY_ASSIGN(Score score, score_in(list[i], i, shape));
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

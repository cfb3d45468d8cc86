#include "reward/service.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "reward/failures.h"
#include "reward/ground_truth.h"

namespace neap::reward {
namespace {

Status wrong_reply(std::string message) {
  return {ErrorCode::kIo, std::move(message)};
}

std::string shown(std::string_view text) {
  return excerpt(text, 120);
}

Result<double> number_in(const Json& value, std::size_t item) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return wrong_reply(format("gave {} as the score of item {}; a finite number is wanted",
                            shown(json_text(value)), item));
}

constexpr double kNoScore = std::numeric_limits<double>::quiet_NaN();

// Text for people in a score: its reason, else its other fields.
std::string reason_in(const Json& score) {
  const auto reason = score.find("reason");
  if (reason != score.end() && reason->is_string()) return reason->get<std::string>();
  Json rest = score;
  rest.erase("score");
  return rest.empty() ? std::string() : shown(json_text(rest));
}

std::string error_text(const Json& error) {
  return error.is_string() ? error.get<std::string>() : json_text(error);
}

bool may_pass(const Json& error) {
  const auto retry = error.find("retry");
  return retry == error.end() || *retry != Json(false);
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

ItemReply item_in(const Json& value, std::size_t item, const ReplyShape& shape) {
  if (value.is_object() && value.contains("error") && !value.contains("score"))
    return {std::nullopt, "failed: " + error_text(value["error"]), may_pass(value)};
  auto score = score_in(value, item, shape);
  if (!score.ok()) return {std::nullopt, score.status().message()};
  return {std::move(score).value()};
}

class Service final : public RewardFunction {
 public:
  Service(const spec::RewardFunctionConfig& config, const Setting& setting,
          std::unique_ptr<Transport> transport)
      : config_(config), prompt_key_(setting.prompt_key), transport_(std::move(transport)) {}

  [[nodiscard]] std::vector<std::string> part_names() const override { return config_.log; }
  [[nodiscard]] Status check(const Json& row) const override {
    // A Python function accepts any content of the field.
    if (takes_raw_truth() && !config_.ground_truth.empty() &&
        ground_truth_field(row, config_.ground_truth) == nullptr)
      return {ErrorCode::kCorrupt, format("field \"{}\" is missing", config_.ground_truth)};
    if (takes_raw_truth()) return {};
    return config_.ground_truth.empty() ? Status()
                                        : Status(ground_truths(row, config_.ground_truth).status());
  }
  [[nodiscard]] Result<std::vector<Score>> score(std::span<const Response> responses) override;

 private:
  class Round;
  [[nodiscard]] std::string request(std::span<const Response> all,
                                    const std::vector<std::size_t>& items) const;
  [[nodiscard]] Json truth_of(const Json& row) const;
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

std::string Service::request(std::span<const Response> all,
                             const std::vector<std::size_t>& items) const {
  Json out = Json::array();
  for (const std::size_t item : items) {
    const Response& response = all[item];
    const Json& row = *response.row;
    out.push_back({{"prompt", row.value(prompt_key_, Json())},
                   {"response", response.text},
                   {"truncated", response.truncated},
                   {"ground_truth", truth_of(row)},
                   {"row", row}});
  }
  return json_text({{"items", std::move(out)}}) + "\n";
}

// Collects the scores of a call's responses, and the failures of others.
class Service::Round final : public Replies {
 public:
  Round(const Service& service, std::span<const Response> responses)
      : service_(service), responses_(responses), scores_(responses.size()) {
    const auto size = static_cast<std::size_t>(service.config_.batch_size);
    for (std::size_t at = 0; at < responses.size(); at += size) {
      std::vector<std::size_t>& items = open_.emplace_back();
      for (std::size_t i = at; i < std::min(at + size, responses.size()); ++i) items.push_back(i);
    }
  }

  // Requests to send now; empty if everything is known.
  [[nodiscard]] std::vector<std::string> requests() {
    asked_ = std::exchange(open_, {});
    about_.assign(asked_.size(), std::nullopt);
    std::vector<std::string> out;
    for (const auto& items : asked_) out.push_back(service_.request(responses_, items));
    return out;
  }
  [[nodiscard]] Verdict accept(std::size_t request, std::string_view reply) override;
  [[nodiscard]] Status give_up(std::size_t request, const Status& why) override;
  // Sets the default score for responses without one.
  [[nodiscard]] std::vector<Score> finish(const Status& end);

 private:
  // After this many consecutive requests without scores, no further ones are sent: each may take
  // long.
  static constexpr int kMostSilent = 2;

  // Responses of a request that have no score.
  [[nodiscard]] std::vector<std::size_t> missing(std::size_t request) const {
    std::vector<std::size_t> out;
    for (const std::size_t i : asked_[request])
      if (!scores_[i]) out.push_back(i);
    return out;
  }

  const Service& service_;
  std::span<const Response> responses_;
  std::vector<std::optional<Score>> scores_;
  std::map<std::size_t, std::string> failures_;  // failures by response
  std::vector<std::vector<std::size_t>> open_, asked_;
  std::vector<std::optional<std::size_t>>
      about_;  // the response that caused the failure of a request
  int silent_ = 0;
};

Replies::Verdict Service::Round::accept(std::size_t request, std::string_view reply) {
  const std::vector<std::size_t>& items = asked_[request];
  about_[request].reset();
  if (const auto json = parse_json(reply, "reply", read_limits::kReply);
      json.ok() && json->is_object() && json->contains("error")) {
    const Json item = json->value("item", Json());
    std::string text = "failed: " + error_text((*json)["error"]);
    if (item.is_number_unsigned() && item.get<std::size_t>() < items.size()) {
      about_[request] = items[item.get<std::size_t>()];
      silent_ = 0;
      text = with_row(text, responses_[*about_[request]]);
    }
    return {wrong_reply(std::move(text)), may_pass(*json)};
  }
  auto parsed =
      parse_reply(reply, {items.size(), service_.config_.log, service_.takes_raw_truth()});
  if (!parsed.ok()) return {parsed.status()};
  silent_ = 0;
  std::string first;
  std::size_t failed = 0;
  bool again = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    ItemReply& each = (*parsed)[i];
    if (each.score) {
      scores_[items[i]] = std::move(each.score);
      failures_.erase(items[i]);
      continue;
    }
    again = again || each.again;
    const std::string text = with_row(each.failure, responses_[items[i]]);
    failures_[items[i]] = text;
    if (failed++ == 0) first = text;
  }
  if (failed == 0) return {};
  if (failed > 1) first += format(" (and {} more of {} responses)", failed - 1, items.size());
  return {wrong_reply(std::move(first)), again};
}

Status Service::Round::give_up(std::size_t request, const Status& why) {
  if (service_.config_.on_failure != "default") return why;
  std::vector<std::size_t> rest = missing(request);
  if (about_[request]) {
    failures_[*about_[request]] = why.message();
    std::erase(rest, *about_[request]);
    if (!rest.empty()) open_.push_back(std::move(rest));
    return {};
  }
  bool silent = false;
  for (const std::size_t i : rest)
    silent = failures_.try_emplace(i, why.message()).second || silent;
  silent_ = silent ? silent_ + 1 : 0;
  return silent_ < kMostSilent ? Status() : why;
}

std::vector<Score> Service::Round::finish(const Status& end) {
  const spec::RewardFunctionConfig& config = service_.config_;
  std::vector<Score> out;
  std::size_t missing = 0;
  for (std::optional<Score>& score : scores_) {
    missing += score ? 0U : 1U;
    if (!score)
      score = Score{config.default_score, std::vector<double>(config.log.size(), kNoScore)};
    out.push_back(std::move(*score));
  }
  if (missing > 0)
    warn_of_defaults(config, missing, out.size(),
                     failures_.empty() ? end.message() : failures_.begin()->second);
  return out;
}

Result<std::vector<Score>> Service::score(std::span<const Response> responses) {
  Round round(*this, responses);
  Status status;
  for (auto requests = round.requests(); status.ok() && !requests.empty();
       requests = round.requests())
    status = transport_->run(requests, round);
  const bool stopped = status.code() == ErrorCode::kCancelled;
  if (!status.ok() && (stopped || config_.on_failure != "default")) return status;
  return round.finish(status);
}

}  // namespace

Result<std::vector<ItemReply>> parse_reply(std::string_view reply, const ReplyShape& shape) {
  const std::size_t count = shape.count;
  const auto json = parse_json(reply, "a reply that", read_limits::kReply);
  if (!json.ok() && json.status().code() == ErrorCode::kCorrupt)
    return wrong_reply(format("answered with what is not JSON: {}", shown(reply)));
  if (!json.ok()) return wrong_reply(format("gave {}", json.status().message()));
  const Json& list = json->is_object() && json->contains("scores") ? (*json)["scores"] : *json;
  if (!list.is_array())
    return wrong_reply(format("answered {}; {{\"scores\": [...]}} is wanted", shown(reply)));
  if (list.size() != count)
    return wrong_reply(format("gave {} scores for {} items", list.size(), count));
  std::vector<ItemReply> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(item_in(list[i], i, shape));
  return out;
}

std::unique_ptr<RewardFunction> make_service(const spec::RewardFunctionConfig& config,
                                             const Setting& setting,
                                             std::unique_ptr<Transport> transport) {
  return std::make_unique<Service>(config, setting, std::move(transport));
}

}  // namespace neap::reward

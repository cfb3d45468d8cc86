#include "rlhf/data/row_encoder.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/format.h"
#include "data/fields.h"
#include "data/stored_row.h"
#include "rlhf/data/length_histogram.h"
#include "rlhf/data/pair_rows.h"

namespace neap::rlhf {
namespace {

namespace fs = std::filesystem;

// Increase it with every change of the tokenizer, chat template or this file that changes the rows
// of the same data. Caches of earlier builds are then ignored.
constexpr int kEncoding = 4;

// Names in a store's notes.
constexpr const char* kPromptLeftOut = "prompt_left_out";
constexpr const char* kResponseLeftOut = "response_left_out";
constexpr const char* kPromptCut = "prompt_cut";
constexpr const char* kResponseCut = "response_cut";
constexpr const char* kNothingTrained = "nothing_trained";
constexpr const char* kEndless = "endless";
// Followed by a kind of text: the limit, if exceeding it is an error.
constexpr std::string_view kTooLong = "too long/";

// The limit of a text's tokens.
struct Limit {
  std::string kind;  // LimitedText
  std::int64_t most;
  std::string key;  // used in messages
  bool filter;
  const char* left_out;
  const char* cut;
};

Limit prompt_limit(const spec::DataConfig& data, const char* part = "") {
  return {"prompt",
          data.max_prompt_length,
          format("data.max_prompt_length{}", part),
          data.filter_overlong_prompts,
          kPromptLeftOut,
          kPromptCut};
}

Limit response_limit(const spec::DataConfig& data, const char* kind,
                     const char* part = ", with the token that ends the text,") {
  return {kind,
          data.max_response_length,
          format("data.max_response_length{}", part),
          data.filter_overlong_responses,
          kResponseLeftOut,
          kResponseCut};
}

// Truncates `items` to `most` elements.
template <class T>
void cut(std::vector<T>& items, std::int64_t most, spec::Truncation truncation) {
  const std::int64_t size = std::ssize(items);
  const std::int64_t head = truncation == spec::Truncation::kRight    ? most
                            : truncation == spec::Truncation::kMiddle ? most / 2
                                                                      : 0;
  items.erase(items.begin() + head, items.begin() + head + (size - most));
}

// Fits a row's texts to their limits.
class Fitting {
 public:
  Fitting(const spec::DataConfig& data, const std::string& where, data::EncodedRows& out)
      : data_(data), where_(where), out_(out) {}

  /// False if the row is to be left out.
  [[nodiscard]] bool fit(train::Tokens& tokens, const Limit& limit,
                         train::TokenMask* mask = nullptr) const {
    count_length({limit.kind, limit.most}, std::ssize(tokens), where_, out_);
    if (std::ssize(tokens) <= limit.most) return true;
    if (limit.filter) {
      ++out_.counts[limit.left_out];
      return false;
    }
    // All such texts are counted first; then check_lengths() fails.
    if (data_.truncation == spec::Truncation::kError) {
      out_.firsts.try_emplace(format("{}{}", kTooLong, limit.kind),
                              format("{} is {}", limit.key, limit.most));
      return false;
    }
    ++out_.counts[limit.cut];
    cut(tokens, limit.most, data_.truncation);
    if (mask != nullptr) cut(*mask, limit.most, data_.truncation);
    return true;
  }

 private:
  const spec::DataConfig& data_;
  const std::string& where_;
  data::EncodedRows& out_;
};

template <class T>
T checked(Result<T> result) {
  return value_or_throw(std::move(result));
}

// Templates may insert today's date.
std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  (void)::localtime_r(&now, &parts);
  return format("{}-{}-{}", parts.tm_year, parts.tm_mon, parts.tm_mday);
}

}  // namespace

Status check_lengths(const Json& notes, const std::string& file) {
  std::string all;
  for (const char* kind : {"prompt", "response", "chosen", "rejected"}) {
    const std::string limit = notes.value(format("{}{}", kTooLong, kind), std::string());
    const auto over = overlong(notes, kind);
    if (limit.empty() || !over) continue;
    const bool prompt = std::string_view(kind) == "prompt";
    all += format(
        "{}{}; {}. {} of {} over it, and the longest has {} tokens: raise {}, or {} leaves such "
        "rows "
        "out, data.truncation shortens them",
        all.empty() ? "" : "\n", over->first, limit,
        over->count == 1 ? std::string("1 text") : format("{} texts", over->count),
        file + (over->count == 1 ? " is" : " are"), over->longest,
        prompt ? "data.max_prompt_length" : "data.max_response_length",
        prompt ? "data.filter_overlong_prompts" : "data.filter_overlong_responses");
  }
  return all.empty() ? ok_status() : Status(ErrorCode::kInvalidArgument, all);
}

const std::map<std::string, std::string>& counted_rows() {
  static const std::map<std::string, std::string> kText = {
      {kPromptLeftOut, "rows left out, with a prompt over data.max_prompt_length"},
      {kResponseLeftOut, "rows left out, with a response over data.max_response_length"},
      {kPromptCut, "prompts cut to data.max_prompt_length"},
      {kResponseCut, "responses cut to data.max_response_length"},
      {kNothingTrained, "rows left out: what was cut off was all of the assistant's text"},
      {kEndless,
       "responses without a token that ends a text: the chat template writes none, and the model "
       "does not learn to stop"}};
  return kText;
}

RowCheck reward_check(const spec::Job& job, const reward::RewardSet& rewards) {
  if (rewards.empty()) return {};
  spec::Job copy = job;
  return {[&rewards](const Json& row, data::EncodedRows&) { return rewards.check(row); },
          copy.bind().to_json()["reward"]};
}

Status RowEncoder::encode(const data::RawRow& row, const std::string& where,
                          data::EncodedRows& out) const {
  try {
    const Json json = checked(data::parse_row(row.text, where));
    if (context_.job.has_pairs()) {
      encode_pairs(json, where, out);
    } else if (context_.job.has_rollout()) {
      encode_prompt_row(json, row.text, where, out);
    } else {
      encode_text(json, where, out);
    }
    return {};
  } catch (const Error& e) {
    return e.status();
  }
}

void RowEncoder::count_endless(const train::Tokens& response, data::EncodedRows& out) const {
  const text::TextTokens& text = context_.text;
  if (std::none_of(response.begin(), response.end(), [&](auto id) { return text.is_end(id); }))
    ++out.counts[kEndless];
}

void RowEncoder::encode_text(const Json& row, const std::string& where,
                             data::EncodedRows& out) const {
  const spec::DataConfig& data = context_.job.data;
  const Json response = checked(data::optional_text_field(row, data.response_key, where));
  TrainingText text = encode_training_text(
      context_, row, checked(data::text_field(row, data.prompt_key, where, "data.prompt_key")),
      response, where);
  count_endless(text.response, out);
  const bool turns = response.is_null();
  const Fitting fitting(data, where, out);
  const Limit prompt =
      turns ? prompt_limit(data, ", up to the assistant's first token,") : prompt_limit(data);
  const Limit rest =
      turns ? response_limit(data, "response", ", from the assistant's first token on,")
            : response_limit(data, "response");
  if (!fitting.fit(text.prompt, prompt) || !fitting.fit(text.response, rest, &text.mask)) return;
  if (std::find(text.mask.begin(), text.mask.end(), true) == text.mask.end()) {
    ++out.counts[kNothingTrained];
    return;
  }
  out.rows.push_back(data::pack(
      {{std::move(text.prompt), std::move(text.response)}, std::move(text.mask), 0, {}}));
}

void RowEncoder::encode_pairs(const Json& row, const std::string& where,
                              data::EncodedRows& out) const {
  const spec::DataConfig& data = context_.job.data;
  const auto pairs = pairs_of(row, data);
  if (!pairs.ok()) throw Error(Status(pairs.status()).with_context(where));
  const Fitting fitting(data, where, out);
  for (const PairRow& pair : *pairs) {
    ContinuedPrompt made =
        encode_continued(context_, row, pair.prompt, {pair.chosen, pair.rejected}, where);
    train::Tokens& prompt = made.prompt;
    train::Tokens &chosen = made.responses[0], &rejected = made.responses[1];
    count_endless(chosen, out);
    count_endless(rejected, out);
    if (!fitting.fit(prompt, prompt_limit(data)) ||
        !fitting.fit(chosen, response_limit(data, "chosen")) ||
        !fitting.fit(rejected, response_limit(data, "rejected")))
      continue;
    out.rows.push_back(data::pack({{std::move(prompt), std::move(chosen), std::move(rejected)},
                                   {},
                                   static_cast<float>(pair.margin),
                                   {}}));
  }
}

void RowEncoder::encode_prompt_row(const Json& row, std::string_view text, const std::string& where,
                                   data::EncodedRows& out) const {
  const spec::DataConfig& data = context_.job.data;
  train::Tokens prompt = encode_prompt(
      context_, row, checked(data::text_field(row, data.prompt_key, where, "data.prompt_key")),
      where);
  if (!Fitting(data, where, out).fit(prompt, prompt_limit(data))) return;
  if (check_.row) {
    if (const Status status = check_.row(row, out); !status.ok())
      throw Error(status.code(), format("{}: {}", where, status.message()));
  }
  std::string json(keep_ || check_.row ? text : "");
  out.rows.push_back(data::pack({{std::move(prompt)}, {}, 0, std::move(json)}));
}

std::string RowEncoder::recipe() const {
  const spec::Job& job = context_.job;
  const spec::DataConfig& data = job.data;
  Json all = {
      {"encoding", kEncoding},
      {"task", to_string(job.task)},
      {"tokenizer", context_.tokenizer_hash},
      {"end", context_.text.end},
      {"keys",
       {data.prompt_key, data.response_key, data.chosen_key, data.rejected_key, data.margin_key,
        data.ranking_key}},
      {"assistant_only_loss", data.assistant_only_loss},
      {"whole_rows", keep_},
      {"lengths", {data.max_prompt_length, data.max_response_length}},
      {"overlong",
       {data.filter_overlong_prompts, data.filter_overlong_responses, to_string(data.truncation)}}};
  if (context_.tokenizer.chat_template().find("strftime_now") != std::string::npos)
    all["date"] = today();
  if (check_.row) all["rewards"] = check_.recipe;
  return json_text(all);
}

}  // namespace neap::rlhf

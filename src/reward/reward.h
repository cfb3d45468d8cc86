// Functions that score responses: rules and programs of users, without a model.
//
// Threads   one at a time for each object.
// Failure   Status. A rule never fails on a response, whatever it holds: what it cannot read is wrong.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "spec/reward_config.h"

namespace neap::reward {

/// A response to score. What it points to outlives the call.
struct Response {
  const Json* row = nullptr;  ///< of the data, as the file has it, with the prompt
  std::string_view text;      ///< decoded, without special tokens
  std::int64_t tokens = 0;    ///< with the one that ends it
  bool truncated = false;     ///< it reached the longest length without an end
  std::string_view where{};   ///< of the row, for messages: "a.jsonl:12"
};

struct Score {
  double value = 0;             ///< NaN: the function has nothing to say about the response
  std::vector<double> parts{};  ///< as part_names(); NaN where there is none
  std::string reason{};         ///< what a service gave besides, for people
};

class RewardFunction {
 public:
  RewardFunction() = default;
  RewardFunction(const RewardFunction&) = delete;
  RewardFunction& operator=(const RewardFunction&) = delete;
  virtual ~RewardFunction() = default;

  /// Further numbers of each score, for metrics. "acc" is 1 for a right answer.
  [[nodiscard]] virtual std::vector<std::string> part_names() const = 0;
  /// Whether the function can score responses to `row`; asked for every row before a run, by any
  /// thread.
  [[nodiscard]] virtual Status check(const Json& row) const = 0;
  /// One score for each response, in order.
  [[nodiscard]] virtual Result<std::vector<Score>> score(std::span<const Response> responses) = 0;
  /// The answer that a response gives, written in one way for votes; nullopt where it gives none, and
  /// from functions that look for none.
  [[nodiscard]] virtual std::optional<std::string> answer(const Response&) const { return {}; }
};

/// What functions know of the job besides their own table.
struct Setting {
  std::int64_t max_response_length = 0;  ///< tokens
  std::string prompt_key{};              ///< field of a row with the prompt
  std::filesystem::path folder{};        ///< programs run in it
  std::size_t threads = 1;               ///< of rules
  std::function<bool()> stop{};          ///< whether to give up waiting for a service (kCancelled)
  bool scored_by_model = false;          ///< a reward model scores each response, too
};

[[nodiscard]] Result<std::unique_ptr<RewardFunction>> make_function(
    const spec::RewardFunctionConfig& config, const Setting& setting);

}  // namespace neap::reward

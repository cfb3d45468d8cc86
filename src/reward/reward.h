// Functions that score responses: rules, and users' programs. No model is involved.
//
// Threads   one at a time per object.
//
// Failure   Status. For a rule, text that it cannot read is a wrong answer.
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
#include "spec/types/reward_config.h"

namespace neap::reward {

/// A response to score. Its pointers outlive the call.
struct Response {
  const Json* row = nullptr;  ///< the row of the data file, with the prompt
  std::string_view text;      ///< decoded, without special tokens
  std::int64_t tokens = 0;    ///< includes the end token
  bool truncated = false;     ///< it reached the maximum length without an end token
  std::string_view where{};   ///< place of the row for messages: "a.jsonl:12"
};

struct Score {
  double value = 0;             ///< NaN: the function has no score for the response
  std::vector<double> parts{};  ///< in the order of part_names(); NaN if missing
  std::string reason{};         ///< explanation by a service, for people
};

class RewardFunction {
 public:
  RewardFunction() = default;
  RewardFunction(const RewardFunction&) = delete;
  RewardFunction& operator=(const RewardFunction&) = delete;
  virtual ~RewardFunction() = default;

  /// Names of additional numbers per score, for metrics. "acc" is 1 for a right answer.
  [[nodiscard]] virtual std::vector<std::string> part_names() const = 0;
  /// Whether the function can score responses to `row`. It is called for every row before a run,
  /// from any thread.
  [[nodiscard]] virtual Status check(const Json& row) const = 0;
  /// One score for each response, in order.
  [[nodiscard]] virtual Result<std::vector<Score>> score(std::span<const Response> responses) = 0;
  /// The answer in a response, in canonical form for votes. nullopt if it has none, or if the
  /// function does not look for answers.
  [[nodiscard]] virtual std::optional<std::string> answer(const Response&) const { return {}; }
};

/// The job's settings for reward functions, other than their own table.
struct Setting {
  std::int64_t max_response_length = 0;  ///< tokens
  std::string prompt_key{};              ///< field of a row that contains the prompt
  std::filesystem::path folder{};        ///< working folder of programs
  std::size_t threads = 1;               ///< for rules
  std::function<bool()> stop{};          ///< true: stop waiting for a service (kCancelled)
  bool scored_by_model = false;          ///< a reward model also scores each response
};

[[nodiscard]] Result<std::unique_ptr<RewardFunction>> make_function(
    const spec::RewardFunctionConfig& config, const Setting& setting);

}  // namespace neap::reward

// What a job's rewards are computed by besides a reward model: a list of functions, each a table
// `[[reward.functions]]`.
//
// Threads   values and functions without state.   Failure   kInvalidArgument, naming the key.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/status.h"

namespace neap::spec {

enum class RewardKind : std::uint8_t {
  kExact,     ///< the answer is the ground truth, character by character
  kNumeric,   ///< the answer is the same number
  kSymbolic,  ///< the answer is the same mathematical object
  kRegex,     ///< the response matches a pattern
  kFormat,    ///< the response has the tags of a reasoning answer
  kLength,    ///< a penalty for responses that come close to the limit
  kProgram,   ///< a program of the user scores batches of responses
  kHttp,      ///< a server does
  kPython,    ///< a Python function of the user does
};
[[nodiscard]] std::vector<std::string> reward_kind_names();
[[nodiscard]] std::string_view to_string(RewardKind kind);
[[nodiscard]] Result<RewardKind> parse_reward_kind(std::string_view name);

/// Where in a response its answer is.
enum class Extraction : std::uint8_t {
  kWhole,       ///< all of it
  kHashes,      ///< behind the last "####", to the end of the line
  kBoxed,       ///< in the last \boxed{}
  kAnswerTag,   ///< in the last <answer></answer>
  kAnswerLine,  ///< behind the last "answer is" or "Answer:", to the end of the line
  kLastNumber,  ///< the last number
  kPattern,     ///< the first group of the last match of a pattern
};
[[nodiscard]] std::vector<std::string> extraction_names();
[[nodiscard]] Result<Extraction> parse_extraction(std::string_view name);

struct RewardFunctionConfig {
  RewardKind kind = RewardKind::kExact;
  std::string name;  ///< in metrics; empty: the kind's
  double weight = 1;
  std::vector<std::string> data_sources;  ///< rows that it scores; empty: all
  std::string ground_truth;               ///< path in a row; empty: the usual ones
  std::vector<std::string> extract;       ///< tried in order; empty: the kind's own
  std::string pattern;
  bool ignore_case = false;
  double tolerance = 0;
  double correct_score = 1, wrong_score = 0;
  std::string style = "think_answer";
  std::string formula = "verl";
  std::int64_t max_length = 0;  ///< 0: data.max_response_length
  std::int64_t buffer_length = 0;
  double penalty_factor = 1;
  std::vector<std::string> command;
  std::string path, function = "compute_score";  ///< of Python
  std::vector<std::string> env;                  ///< variables besides the usual ones
  Bytes memory_limit;                            ///< 0: half of the machine's
  Bytes file_size_limit = 8_GiB;
  std::string url;
  std::vector<std::string> headers;
  std::int64_t batch_size = 64;
  std::int64_t concurrency = 1;
  double timeout = 60;  ///< seconds
  std::int64_t retries = 2;
  std::string on_failure = "stop";
  double default_score = 0;
  std::vector<std::string> log;

  [[nodiscard]] std::string metric_name() const {
    return name.empty() ? std::string(to_string(kind)) : name;
  }
};

struct RewardConfig {
  std::deque<RewardFunctionConfig> functions;
  /// Binds `[[reward.functions]]`.
  void bind(ConfigTable& table);
  /// Keys that a function's kind does not read but that are set, missing ones, and names that occur
  /// twice.
  [[nodiscard]] Status validate(const ConfigTable& table) const;
};

}  // namespace neap::spec

// The reward functions of a job, which are used with or without a reward model. Each is a table
// `[[reward.functions]]`.
//
// Threads   values.
// Failure   Status naming the key.
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
  kExact,     ///< the answer equals the ground truth, character by character
  kNumeric,   ///< the answer is the same number
  kSymbolic,  ///< the answer is the same mathematical object
  kRegex,     ///< the response contains a match of a pattern
  kFormat,    ///< the response has the tags of a reasoning answer
  kLength,    ///< a penalty for responses close to the length limit
  kProgram,   ///< a user's program scores batches of responses
  kHttp,      ///< a server scores batches of responses
  kPython,    ///< a user's Python function scores responses
};
[[nodiscard]] std::vector<std::string> reward_kind_names();
[[nodiscard]] std::string_view to_string(RewardKind kind);
[[nodiscard]] Result<RewardKind> parse_reward_kind(std::string_view name);

/// Where in a response the answer is.
enum class Extraction : std::uint8_t {
  kWhole,       ///< the whole response
  kHashes,      ///< after the last "####", to the end of the line
  kBoxed,       ///< in the last \boxed{}
  kAnswerTag,   ///< in the last <answer></answer>
  kAnswerLine,  ///< after the last "answer is" or "Answer:", to the end of the line
  kLastNumber,  ///< the last number
  kPattern,     ///< first group of the last match of a pattern
};
[[nodiscard]] std::vector<std::string> extraction_names();
[[nodiscard]] Result<Extraction> parse_extraction(std::string_view name);

struct RewardFunctionConfig {
  RewardKind kind = RewardKind::kExact;
  std::string name;  ///< name in metrics; empty: the kind's name
  double weight = 1;
  std::vector<std::string> data_sources;  ///< only rows of these sources are scored; empty: all
  std::string ground_truth;               ///< path in a row; empty: the usual ones
  std::vector<std::string> extract;       ///< tried in order; empty: the kind's default
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
  std::string path, function = "compute_score";  ///< for kPython
  /// Environment variables to pass on, in addition to the usual ones.
  std::vector<std::string> env;
  Bytes memory_limit;  ///< 0: half of the machine's memory
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
  /// Fails for keys that a function's kind does not read, missing keys, and names that occur twice.
  [[nodiscard]] Status validate(const ConfigTable& table) const;
};

}  // namespace neap::spec

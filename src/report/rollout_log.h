// Responses of training steps with their scores: rollouts.jsonl, one line per response.
//
//   {"step": 10, "prompt": "...", "response": "...", "ground_truth": "42", "score": 0.9,
//    "rewards": {"math": 1, "length": -0.1}, "tokens": 87, "truncated": false, "data_source": "gsm8k"}
//
// With token ids each line also has "prompt_ids" and "response_ids".
//
// Size      at most the limit. A file that reaches half of it is renamed to rollouts.1.jsonl, which
//           replaces the previous one.
// Resume    lines of later steps and an incomplete last line are removed from both files before the
//           first append.
// Threads   one owner at a time.
// Failure   Status; a step that cannot be written (disk full) leaves no incomplete line.
// Cost      one write call per step; reads and truncation take memory for one line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "report/append_file.h"

namespace neap::report {

inline constexpr std::string_view kRolloutsFile = "rollouts.jsonl";
inline constexpr std::string_view kOlderRolloutsFile = "rollouts.1.jsonl";

struct Rollout {
  std::string prompt, response;
  std::vector<std::string> ground_truth{};  ///< accepted answers; empty: unknown
  double score = 0;                         ///< the sum used for training
  /// Score of each reward function and of the reward model, by name. NaN: it does not score this
  /// response.
  std::vector<std::pair<std::string, double>> rewards{};
  std::int64_t tokens = 0;  ///< of the response
  bool truncated = false;   ///< it reached the maximum length without an end token
  std::string data_source{};
  std::string verdict{};  ///< "right", "wrong" or "partly right"; empty: no function tells
  std::vector<std::int64_t> prompt_ids{}, response_ids{};  ///< empty: not requested

  [[nodiscard]] Json to_json() const;  ///< without the step
  /// Fields that are missing or have a wrong type stay empty.
  [[nodiscard]] static Rollout from_json(const Json& json);
};

class RolloutLog {
 public:
  /// `resume_step`: removes lines of later steps. Unset: the folder must not have rollouts
  /// (kAlreadyExists).
  [[nodiscard]] static Result<RolloutLog> open(const std::filesystem::path& folder,
                                               std::optional<std::int64_t> resume_step,
                                               Bytes limit);
  Status append(std::uint64_t step, std::span<const Rollout> rollouts);
  Status sync() { return file_.sync(); }
  /// Call after the folder was moved.
  void moved_to(const std::filesystem::path& folder) { file_.moved_to(folder / kRolloutsFile); }

 private:
  RolloutLog(AppendFile file, Bytes limit) : file_(std::move(file)), limit_(limit) {}
  Status rotate();
  AppendFile file_;
  Bytes limit_;
};

struct StepRollouts {
  std::uint64_t step = 0;
  std::vector<Rollout> rollouts;
  bool whole = true;  ///< false: the first responses of the step are missing
};
/// The newest responses of a run's folder by step, from at most `most` bytes of lines. Empty
/// without the file.
[[nodiscard]] Result<std::vector<StepRollouts>> read_rollouts(const std::filesystem::path& folder,
                                                              Bytes most);

/// Selects `count` of `rollouts` by falling score: the highest, the median, the lowest, and others
/// between them.
[[nodiscard]] std::vector<const Rollout*> some_of(std::span<const Rollout> rollouts,
                                                  std::size_t count);
/// Formats responses for a console with `columns` columns: scores, then shortened prompt, ground
/// truth and response.
[[nodiscard]] std::string rollouts_text(std::span<const Rollout* const> rollouts,
                                        std::size_t columns);

}  // namespace neap::report

// Responses of training steps with their scores: rollouts.jsonl, one line a response.
//
//   {"step": 10, "prompt": "...", "response": "...", "ground_truth": "42", "score": 0.9,
//    "rewards": {"math": 1, "length": -0.1}, "tokens": 87, "truncated": false, "data_source": "gsm8k"}
//
// With token ids there are "prompt_ids" and "response_ids", too.
// Size      at most the limit: a file that reaches half of it is renamed to rollouts.1.jsonl, in place
//           of the one before.
// Resume    lines of later steps, and a torn last line, are cut off both files before the first append.
// Threads   one owner at a time.
// Failure   Status; a step that fails to be written (disk full) leaves no torn line behind.
// Cost      one write call a step; reads and cuts take memory for one line.
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
  std::vector<std::string> ground_truth{};  ///< accepted answers; empty: none is known
  double score = 0;                         ///< the sum that training uses
  /// Of each reward function and of the reward model, by name; NaN: it does not score this one.
  std::vector<std::pair<std::string, double>> rewards{};
  std::int64_t tokens = 0;  ///< of the response
  bool truncated = false;   ///< it reached the longest length without an end
  std::string data_source{};
  std::string verdict{};  ///< "right", "wrong" or "partly right"; empty: no function says
  std::vector<std::int64_t> prompt_ids{}, response_ids{};  ///< empty: not asked for

  [[nodiscard]] Json to_json() const;  ///< without the step
  /// Fields that are missing or of another type stay empty.
  [[nodiscard]] static Rollout from_json(const Json& json);
};

class RolloutLog {
 public:
  /// `resume_step`: lines of later steps go; unset: the folder must hold no rollouts (kAlreadyExists).
  [[nodiscard]] static Result<RolloutLog> open(const std::filesystem::path& folder,
                                               std::optional<std::int64_t> resume_step,
                                               Bytes limit);
  Status append(std::uint64_t step, std::span<const Rollout> rollouts);
  Status sync() { return file_.sync(); }
  /// Somebody has moved the folder.
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
  bool whole = true;  ///< else the first ones of the step are left out
};
/// The newest responses of a run's folder, by step, in `most` bytes of lines. Empty without the file.
[[nodiscard]] Result<std::vector<StepRollouts>> read_rollouts(const std::filesystem::path& folder,
                                                              Bytes most);

/// The highest, the middle and the lowest of the scores, and those in between: `count` of `rollouts`
/// by falling score.
[[nodiscard]] std::vector<const Rollout*> some_of(std::span<const Rollout> rollouts,
                                                  std::size_t count);
/// Some responses for a console of `columns` columns, in whole lines: scores, then prompt, truth and
/// response, shortened.
[[nodiscard]] std::string rollouts_text(std::span<const Rollout* const> rollouts,
                                        std::size_t columns);

}  // namespace neap::report

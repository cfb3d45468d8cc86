// A job's training and validation data: encoded once, and read a batch at a time.
//
//   sft           prompt, response and its mask
//   reward, dpo   prompt, chosen, rejected, margin: one stored row per pair
//   ppo, grpo     prompt; and the whole row as JSON for reward functions and validation
//
// Texts over their limit are filtered or truncated here, as the configuration says, and counted.
//
// Threads   one at a time; encoding uses several.
// Failure   Error with file and row.
// Memory    data.rows_in_memory, and what data/encode_files.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/batch_order.h"
#include "data/encode_files.h"
#include "data/stored_row.h"
#include "reward/reward_set.h"
#include "rlhf/data/row_encoder.h"

namespace neap::rlhf {

class Rows {
 public:
  Rows() = default;
  explicit Rows(data::FileRows files) : files_(std::move(files)) {}
  [[nodiscard]] std::size_t size() const { return files_.size(); }
  [[nodiscard]] data::StoredRow at(std::size_t number) const;
  [[nodiscard]] const data::FileRows& files() const { return files_; }
  /// The count under `name` from encoding and checking.
  [[nodiscard]] std::uint64_t count(const std::string& name) const { return files_.count(name); }

 private:
  data::FileRows files_;
};

struct JobData {
  Rows train;     ///< empty for `neap eval`
  Rows held_out;  ///< empty without data.val_files
};

[[nodiscard]] reward::RewardSet make_rewards(const spec::Job& job, std::int64_t threads);

/// The number of encoding threads. For large files one rank per machine encodes while the others
/// wait, so it uses their threads too.
[[nodiscard]] std::size_t encoding_threads(std::int64_t of_a_rank, int ranks);

/// Encodes the job's files, or reads them from the cache. A row that fails the check is an error.
/// Logs how many rows were filtered and truncated.
[[nodiscard]] JobData read_data(const TextContext& context, const RowCheck& check,
                                std::size_t threads);

/// A failure while the job computes. A file that is then missing or damaged is not the user's mistake: the code is kIo.
[[nodiscard]] Status while_running(const Status& why);

/// The order of training batches.
[[nodiscard]] data::BatchOrder batch_order(const spec::Job& job, const JobData& data);

}  // namespace neap::rlhf

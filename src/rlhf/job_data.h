// A job's training and validation rows: encoded once, read a batch at a time.
//
//   sft           prompt, response and its mask
//   reward, dpo   prompt, chosen, rejected, margin: one stored row for each pair of a row
//   ppo, grpo     prompt; and the whole row as JSON for reward functions and validation
//
// Texts over their limit are filtered or cut here, as the configuration says, and counted.
//
// Threads   one at a time; encoding uses several.   Failure   Error with file and row.
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
#include "rlhf/row_encoder.h"

namespace neap::rlhf {

class Rows {
 public:
  Rows() = default;
  explicit Rows(data::FileRows files) : files_(std::move(files)) {}
  [[nodiscard]] std::size_t size() const { return files_.size(); }
  [[nodiscard]] data::StoredRow at(std::size_t number) const;
  [[nodiscard]] const data::FileRows& files() const { return files_; }
  /// How often encoding and checking counted `name`.
  [[nodiscard]] std::uint64_t count(const std::string& name) const { return files_.count(name); }

 private:
  data::FileRows files_;
};

struct JobData {
  Rows train;     ///< empty in eval
  Rows held_out;  ///< empty without data.val_files
};

[[nodiscard]] reward::RewardSet make_rewards(const spec::Job& job, std::int64_t threads);

/// Threads that encode: of large files one rank of a machine encodes while the others wait for it.
[[nodiscard]] std::size_t encoding_threads(std::int64_t of_a_rank, int ranks);

/// Reads what the job's files hold, or finds it in the cache. Rows of prompts that fail the check are
/// errors. How many rows were filtered and cut is logged.
[[nodiscard]] JobData read_data(const TextContext& context, const RowCheck& check,
                                std::size_t threads);

/// Of the training rows.
[[nodiscard]] data::BatchOrder batch_order(const spec::Job& job, const JobData& data);

}  // namespace neap::rlhf

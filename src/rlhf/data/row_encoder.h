// Encodes one row of a data file into stored rows: see job_data.h.
//
// Threads   const calls from any thread.
// Failure   Status with the row's location.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/encode_files.h"
#include "reward/reward_set.h"
#include "rlhf/data/text_encoder.h"

namespace neap::rlhf {

/// A check of rows with prompts.
struct RowCheck {
  /// Empty: no check. Called by several threads; it may count.
  std::function<Status(const Json& row, data::EncodedRows& out)> row;
  Json recipe;  ///< everything that the outcome depends on, except the row
};
/// Checks that the job's reward functions can score the rows.
[[nodiscard]] RowCheck reward_check(const spec::Job& job, const reward::RewardSet& rewards);

class RowEncoder {
 public:
  /// Both must outlive it. `keep`: store the whole row with each prompt even if nothing checks it.
  RowEncoder(const TextContext& context, const RowCheck& check, bool keep)
      : context_(context), check_(check), keep_(keep) {}

  [[nodiscard]] Status encode(const data::RawRow& row, const std::string& where,
                              data::EncodedRows& out) const;
  /// Everything that the result depends on except the file: tokenizer, template, keys of the job,
  /// and kEncoding of this build.
  [[nodiscard]] std::string recipe() const;

 private:
  void count_endless(const train::Tokens& response, data::EncodedRows& out) const;
  void encode_text(const Json& row, const std::string& where, data::EncodedRows& out) const;
  void encode_pairs(const Json& row, const std::string& where, data::EncodedRows& out) const;
  void encode_prompt_row(const Json& row, std::string_view text, const std::string& where,
                         data::EncodedRows& out) const;
  const TextContext& context_;
  const RowCheck& check_;
  bool keep_;
};

/// Fails if texts exceed their limit and the job neither filters nor truncates them. `notes` are
/// those of the file's rows.
[[nodiscard]] Status check_lengths(const Json& notes, const std::string& file);

/// A description of each count in a store's notes: "rows left out: their prompt is over ...".
[[nodiscard]] const std::map<std::string, std::string>& counted_rows();

}  // namespace neap::rlhf

// One row of a data file as the rows that are stored: see job_data.h.
//
// Threads   const calls from any thread.
// Failure   Status with the row's place.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/encode_files.h"
#include "reward/reward_set.h"
#include "rlhf/text_encoder.h"

namespace neap::rlhf {

/// What rows of prompts are checked for.
struct RowCheck {
  /// Empty: nothing. Called by several threads; may count.
  std::function<Status(const Json& row, data::EncodedRows& out)> row;
  Json recipe;  ///< everything besides the row that the outcome depends on
};
/// That the job's rewards can score them.
[[nodiscard]] RowCheck reward_check(const spec::Job& job, const reward::RewardSet& rewards);

class RowEncoder {
 public:
  /// Both outlive it. `keep`: prompts come with their whole row also where nothing checks it.
  RowEncoder(const TextContext& context, const RowCheck& check, bool keep)
      : context_(context), check_(check), keep_(keep) {}

  [[nodiscard]] Status encode(const data::RawRow& row, const std::string& where,
                              data::EncodedRows& out) const;
  /// Everything besides the file that the result depends on: tokenizer, template, keys of the job,
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

/// Fails where texts are over their limit and the job neither filters nor cuts them; `notes` are those
/// of the file's rows.
[[nodiscard]] Status check_lengths(const Json& notes, const std::string& file);

/// For each name of a store's notes what it counts: "rows left out: their prompt is over ...".
[[nodiscard]] const std::map<std::string, std::string>& counted_rows();

}  // namespace neap::rlhf

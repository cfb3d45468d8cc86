// One row of a data file as the rows that are stored: see job_data.h.
//
// Threads   const calls from any thread.
// Failure   Status with the row's place.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "data/encode_files.h"
#include "reward/reward_set.h"
#include "rlhf/text_encoder.h"

namespace neap::rlhf {

class RowEncoder {
 public:
  /// Both outlive it. `keep`: prompts come with their whole row also where no reward reads it.
  RowEncoder(const TextContext& context, const reward::RewardSet& rewards, bool keep)
      : context_(context), rewards_(rewards), keep_(keep) {}

  [[nodiscard]] Status encode(const data::RawRow& row, const std::string& where,
                              data::EncodedRows& out) const;
  /// Everything besides the file that the result depends on: tokenizer, template, keys of the job,
  /// and kEncoding of this build.
  [[nodiscard]] std::string recipe() const;

 private:
  void encode_text(const Json& row, const std::string& where, data::EncodedRows& out) const;
  void encode_pairs(const Json& row, const std::string& where, data::EncodedRows& out) const;
  void encode_prompt_row(const Json& row, std::string_view text, const std::string& where,
                         data::EncodedRows& out) const;
  const TextContext& context_;
  const reward::RewardSet& rewards_;
  bool keep_;
};

/// For each name of a store's notes what it counts: "rows left out: their prompt is over ...".
[[nodiscard]] const std::map<std::string, std::string>& counted_rows();

}  // namespace neap::rlhf

// The section `data` of a configuration: files, fields, lengths, and truncation of long texts.
//
// Threads   values.
// Failure   Status naming the key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace neap::spec {

/// How a text with more tokens than its limit is shortened. Names are verl's.
enum class Truncation : std::uint8_t {
  kError,
  kLeft,    ///< drop the first tokens
  kRight,   ///< drop the last tokens
  kMiddle,  ///< keep both ends
};
[[nodiscard]] std::vector<std::string> truncation_names();
[[nodiscard]] std::string_view to_string(Truncation truncation);
[[nodiscard]] Result<Truncation> parse_truncation(std::string_view name);

struct DataConfig {
  std::vector<std::string> train_files, val_files;
  std::vector<double> train_weights;  ///< empty: each epoch has every row of every file once
  std::string prompt_key = "prompt", response_key = "response", chosen_key = "chosen",
              rejected_key = "rejected", margin_key = "margin", ranking_key = "ranking";
  bool assistant_only_loss = true;  ///< for sft on conversations
  std::int64_t train_batch_size = 64;
  std::int64_t micro_batch_size_per_gpu = 4;  ///< sft, reward and dpo
  /// For sft, reward and dpo: packed micro-batches, bounded by tokens.
  bool use_dynamic_bsz = true;
  std::int64_t max_token_len_per_gpu = 8192;
  std::int64_t max_prompt_length = 1024, max_response_length = 1024;
  bool filter_overlong_prompts = false, filter_overlong_responses = false;
  Truncation truncation = Truncation::kError;
  bool shuffle = true;
  Bytes rows_in_memory = 256_MiB;
  Bytes cache_limit = 64_GiB;
  std::string cache_dir;  ///< empty: neap/data in the user's cache folder
};

}  // namespace neap::spec

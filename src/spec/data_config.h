// The section `data` of a configuration: files, fields, lengths, and what happens to texts over them.
//
// Threads   values.   Failure   Status naming the key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"
#include "base/status.h"

namespace neap::spec {

/// What happens to a text with more tokens than its limit; verl's names.
enum class Truncation : std::uint8_t {
  kError,
  kLeft,    ///< loses its first tokens
  kRight,   ///< loses its last tokens
  kMiddle,  ///< keeps both ends
};
[[nodiscard]] std::vector<std::string> truncation_names();
[[nodiscard]] std::string_view to_string(Truncation truncation);
[[nodiscard]] Result<Truncation> parse_truncation(std::string_view name);

struct DataConfig {
  std::vector<std::string> train_files, val_files;
  std::vector<double> train_weights;  ///< empty: every row of every file once an epoch
  std::string prompt_key = "prompt", response_key = "response", chosen_key = "chosen",
              rejected_key = "rejected", margin_key = "margin", ranking_key = "ranking";
  bool assistant_only_loss = true;  ///< sft, of whole conversations
  std::int64_t train_batch_size = 64;
  std::int64_t micro_batch_size_per_gpu = 4;  ///< sft, reward and dpo
  bool use_dynamic_bsz = true;                ///< of them: micro-batches by tokens, packed
  std::int64_t max_token_len_per_gpu = 8192;
  std::int64_t max_prompt_length = 1024, max_response_length = 1024;
  bool filter_overlong_prompts = false, filter_overlong_responses = false;
  Truncation truncation = Truncation::kError;
  bool shuffle = true;
  Bytes rows_in_memory = 256_MiB;
  Bytes cache_limit = 64_GiB;
  std::string cache_dir;  ///< empty: neap/data in the user's cache folder
};

struct Job;  // spec/job.h
void bind_data(ConfigTable& t, Job& job);
[[nodiscard]] Status validate_data(const DataConfig& d);

}  // namespace neap::spec

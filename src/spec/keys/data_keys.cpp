#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/format.h"
#include "spec/keys/default_lengths.h"
#include "spec/keys/job_keys.h"
#include "spec/keys/micro_batches.h"
#include "spec/keys/size_checks.h"
#include "spec/keys/token_budgets.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

// Tolerance for weights that should add up to 1: 3 x 0.333333 is accepted and 3 x 0.333 is not.
constexpr double kWeightTolerance = 1e-5;

void bind_fields(ConfigTable& t, DataConfig& d) {
  t.bind("data.prompt_key", &d.prompt_key, "Field of a row that holds the prompt.");
  t.bind("data.response_key", &d.response_key, "Field that holds the response.")
      .only(of_task(Task::kSft));
  const ConfigCondition pairs = of_tasks([](const Job& job) { return job.has_pairs(); });
  t.bind("data.chosen_key", &d.chosen_key, "Field that holds the preferred text.").only(pairs);
  t.bind("data.rejected_key", &d.rejected_key, "Field that holds the other text.").only(pairs);
  t.bind("data.ranking_key", &d.ranking_key,
         "Field that holds a list of texts, the best first, instead of `chosen` and `rejected`; "
         "each pair of them is a row.")
      .only(pairs);
  t.bind("data.margin_key", &d.margin_key,
         "Field with the margin by which the preferred text's score has to be higher; optional.")
      .only(of_task(Task::kReward));
  t.bind("data.assistant_only_loss", &d.assistant_only_loss,
         "In a row that is a whole conversation, only the assistant's texts are trained on; "
         "`false`: all of its tokens.")
      .only(of_task(Task::kSft));
}

void bind_lengths(ConfigTable& t, DataConfig& d) {
  t.bind("data.max_prompt_length", &d.max_prompt_length, "Longest prompt." + kFollowsPositions)
      .in("tokens")
      .at_least(1)
      .at_most(kMostLength);
  t.bind("data.max_response_length", &d.max_response_length,
         "Longest response." + kFollowsPositions)
      .in("tokens")
      .at_least(1)
      .at_most(kMostLength);
  t.bind("data.filter_overlong_prompts", &d.filter_overlong_prompts,
         "Leaves out rows whose prompt is longer, and prints how many.");
  t.bind("data.filter_overlong_responses", &d.filter_overlong_responses,
         "Leaves out rows with a longer response, and prints how many.")
      .only(of_given_responses());
  bind_enum(
      t, "data.truncation", &d.truncation, parse_truncation,
      "A longer prompt or response that is not filtered: `error`: the run ends; "
      "`left`: the first tokens are cut; `right`: the last ones; `middle`: those in the middle.")
      .one_of(truncation_names());
}

void bind_micro_batches(ConfigTable& t, DataConfig& d) {
  const ConfigTable::Section sequences(t, of_given_responses());
  t.bind("data.micro_batch_size_per_gpu", &d.micro_batch_size_per_gpu,
         "Rows of a padded micro-batch; gradients are accumulated." + kAdapts)
      .in("rows")
      .at_least(1)
      .at_most(kMostSequences)
      .only(where(kPacksRows, {false}));
  t.bind(kPacksRows, &d.use_dynamic_bsz,
         "Packs rows without padding into micro-batches of at most `data.max_token_len_per_gpu` "
         "tokens, instead of a number of padded rows.");
  t.bind("data.max_token_len_per_gpu", &d.max_token_len_per_gpu,
         "Tokens of a packed micro-batch; at least those of the longest row." + kHoldsRow)
      .in("tokens")
      .at_least(1)
      .at_most(kMostMicroTokens)
      .only(where(kPacksRows, {true}));
}

}  // namespace

void bind_data(ConfigTable& t, Job& job) {
  DataConfig& d = job.data;
  t.bind("data.train_files", &d.train_files,
         "Files to train on: JSONL, plain or packed by gzip or zstd, or Parquet (docs/data.md).")
      .only(of_training());
  t.bind("data.train_weights", &d.train_weights,
         "Share of each of `train_files` in an epoch; they add up to 1. Empty: every row of every "
         "file once.")
      .only(of_training());
  t.bind("data.val_files", &d.val_files, "Files held out for validation.");
  bind_fields(t, d);
  t.bind("data.train_batch_size", &d.train_batch_size,
         "Rows of one step, of all ranks together: prompts in ppo and grpo, texts in sft, pairs in "
         "reward and dpo.")
      .in("rows")
      .at_least(1)
      .at_most(kMostRows)
      .only(of_training());
  bind_micro_batches(t, d);
  bind_lengths(t, d);
  t.bind("data.shuffle", &d.shuffle, "Shuffles the rows in every epoch, from the seed.")
      .only(of_training());
  t.bind("data.rows_in_memory", &d.rows_in_memory,
         "Encoded rows up to this size are kept in memory; more are written to `data.cache_dir` "
         "and read from there.");
  t.bind("data.cache_limit", &d.cache_limit,
         "Limit of `data.cache_dir`; the least recently used files are removed. 0: no limit.");
  t.bind("data.cache_dir", &d.cache_dir,
         "Folder for encoded rows; empty: `neap/data` in `$XDG_CACHE_HOME` or `~/.cache`.");
}

Status validate_data(const DataConfig& d) {
  const std::vector<double>& weights = d.train_weights;
  if (weights.empty()) return {};
  if (weights.size() != d.train_files.size())
    return wrong(format("data.train_weights has {} numbers for the {} files of data.train_files",
                        weights.size(), d.train_files.size()));
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      return wrong(format("data.train_weights has {}; a file's share is above 0", weight));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (std::abs(sum - 1) > kWeightTolerance)
    return wrong(format("data.train_weights add up to {}; shares add up to 1", sum));
  return {};
}

}  // namespace neap::spec

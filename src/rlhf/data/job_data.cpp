#include "rlhf/data/job_data.h"

#include <algorithm>
#include <thread>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "rlhf/data/length_histogram.h"

namespace neap::rlhf {
namespace {

void log_counts(const std::filesystem::path& file, const data::RowStore& rows) {
  for (const auto& [name, text] : counted_rows()) {
    const auto count = rows.notes().value(name, std::uint64_t{0});
    if (count > 0) log::info(format("{}: {} {}", file.string(), count, text));
  }
}

std::string lengths_of_rows(const spec::DataConfig& config, const data::RowStore& rows) {
  std::string out =
      lengths_text(rows.notes(), config.max_prompt_length, config.max_response_length);
  if (!out.empty()) out.pop_back();  // the log ends the line
  return out;
}

class Reader {
 public:
  Reader(const TextContext& context, const RowCheck& check, std::size_t threads)
      : job_(context.job), context_(context), check_(check) {
    options_.threads = threads;
    options_.cache_folder = job_.resolve(job_.data.cache_dir);
    options_.cache_limit = job_.data.cache_limit;
    options_.memory = job_.data.rows_in_memory;
    options_.show_progress = log::enabled(log::Level::kInfo);
  }

  /// `training` rows get a histogram of lengths in the log.
  Rows read(const std::vector<std::string>& files, bool keep, bool training) {
    const RowEncoder encoder(context_, check_, keep);
    options_.recipe = encoder.recipe();
    data::FileRows out;
    std::string names;
    for (const std::string& name : files) {
      const std::filesystem::path file = job_.resolve(name);
      data::RowStore rows = value_or_throw(data::encode_file(
          file,
          [&encoder](const data::RawRow& row, const std::string& where, data::EncodedRows& to) {
            return encoder.encode(row, where, to);
          },
          options_));
      if (Status status = check_lengths(rows.notes(), file.string()); !status.ok())
        throw Error(data::wrong_input(status));
      log_counts(file, rows);
      if (const std::string lengths = lengths_of_rows(job_.data, rows);
          training && !lengths.empty())
        log::info(format("{}: {} rows\n{}", file.string(), rows.size(), lengths));
      options_.memory = saturating_sub(options_.memory, rows.memory());
      names += (names.empty() ? "" : ", ") + file.string();
      out.add(std::move(rows), file.string());
    }
    if (out.size() == 0) {
      throw Error(ErrorCode::kInvalidArgument, names.empty()
                                                   ? std::string("The list of data files is empty")
                                                   : format("{} hold no rows", names));
    }
    return Rows(std::move(out));
  }

 private:
  const spec::Job& job_;
  const TextContext& context_;
  const RowCheck& check_;
  data::EncodeOptions options_;
};

}  // namespace

data::StoredRow Rows::at(std::size_t number) const {
  Result<data::StoredRow> row = data::unpack(value_or_throw(files_.row(number)));
  if (row.ok()) return std::move(row).value();
  throw Error(Status(row.status()).with_context(format("reading {}", files_.where(number))));
}

reward::RewardSet make_rewards(const spec::Job& job, std::int64_t threads) {
  return value_or_throw(
      reward::RewardSet::make(job.reads_experience() ? spec::RewardConfig() : job.reward,
                              {.max_response_length = job.data.max_response_length,
                               .prompt_key = job.data.prompt_key,
                               .folder = job.folder,
                               .threads = static_cast<std::size_t>(threads),
                               .stop = InterruptScope::requested,
                               .scored_by_model = job.has_reward_model()}));
}

std::size_t encoding_threads(std::int64_t of_a_rank, int ranks) {
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
  return std::min(cores, static_cast<std::size_t>(of_a_rank * ranks));
}

JobData read_data(const TextContext& context, const RowCheck& check, std::size_t threads) {
  if (context.job.reads_experience()) return {};  // the experience has its prompts
  const spec::DataConfig& config = context.job.data;
  Reader reader(context, check, threads);
  JobData out;
  if (context.job.task != spec::Task::kEval)
    out.train = reader.read(config.train_files, false, true);
  // Validation needs the data source and the answer of each prompt.
  if (!config.val_files.empty())
    out.held_out = reader.read(config.val_files, context.job.has_rollout(), false);
  return out;
}

Status while_running(const Status& why) {
  const bool files = why.code() == ErrorCode::kNotFound || why.code() == ErrorCode::kCorrupt;
  return files ? Status(ErrorCode::kIo, why.message()) : why;
}

data::BatchOrder batch_order(const spec::Job& job, const JobData& data) {
  return value_or_throw(data::BatchOrder::make(
      data.train.files().sizes(),
      {static_cast<std::size_t>(job.data.train_batch_size), job.data.shuffle,
       static_cast<std::uint64_t>(job.trainer.seed), job.data.train_weights}));
}

}  // namespace neap::rlhf

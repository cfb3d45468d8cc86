#include "rlhf/job_data.h"

#include <algorithm>
#include <thread>

#include "base/format.h"
#include "base/log.h"

namespace neap::rlhf {
namespace {

void log_counts(const std::filesystem::path& file, const data::RowStore& rows) {
  for (const auto& [name, text] : counted_rows()) {
    const auto count = rows.notes().value(name, std::uint64_t{0});
    if (count > 0) log::info(format("{}: {} {}", file.string(), count, text));
  }
}

class Reader {
 public:
  Reader(const TextContext& context, const RowCheck& check, std::size_t threads)
      : job_(context.job), context_(context), check_(check) {
    options_.threads = threads;
    options_.cache_folder = job_.resolve(job_.data.cache_dir);
    options_.memory = job_.data.rows_in_memory;
    options_.show_progress = log::enabled(log::Level::kInfo);
  }

  Rows read(const std::vector<std::string>& files, bool keep) {
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
      log_counts(file, rows);
      options_.memory = saturating_sub(options_.memory, rows.memory());
      names += (names.empty() ? "" : ", ") + file.string();
      out.add(std::move(rows));
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

reward::RewardSet make_rewards(const spec::Job& job) {
  return value_or_throw(reward::RewardSet::make(
      job.reward, {job.data.max_response_length, job.data.prompt_key, job.folder}));
}

std::size_t encoding_threads(std::int64_t of_a_rank, int ranks) {
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
  return std::min(cores, static_cast<std::size_t>(of_a_rank * ranks));
}

JobData read_data(const TextContext& context, const RowCheck& check, std::size_t threads) {
  const spec::DataConfig& config = context.job.data;
  Reader reader(context, check, threads);
  JobData out;
  if (context.job.task != spec::Task::kEval) out.train = reader.read(config.train_files, false);
  // Validation names a prompt's data source and right answer.
  if (!config.val_files.empty())
    out.held_out = reader.read(config.val_files, context.job.has_rollout());
  return out;
}

data::BatchOrder batch_order(const spec::Job& job, const JobData& data) {
  return value_or_throw(data::BatchOrder::make(
      data.train.files().sizes(),
      {static_cast<std::size_t>(job.data.train_batch_size), job.data.shuffle,
       static_cast<std::uint64_t>(job.trainer.seed), job.data.train_weights}));
}

}  // namespace neap::rlhf

#include "rlhf/experience/reference_log_probs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/content_hash.h"
#include "data/row_cache.h"
#include "rlhf/experience/experience.h"
#include "rlhf/trainer/pairs.h"
#include "weights/safetensors.h"
#include "weights/tensor_io.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTensor = "log_probs";
constexpr const char* kIdentity = "identity";
constexpr std::size_t kSaves = 20;

std::string hash_of_rows(const Rows& rows) {
  std::string hash;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    hash += value_or_throw(rows.files().row(i));
    hash = hash_of(hash);
  }
  return hash;
}

// The hash is over contents, because a folder may move, and "latest" may become another checkpoint.
std::string hash_of_model(const spec::Job& job, const train::WorkerSpec& model) {
  const spec::ModelFiles& files = model.files;
  std::vector<fs::path> all = {files.base / "config.json"};
  const auto weights = model.folders.weights(files.base);
  if (const auto index = weights->index()) all.push_back(*index);
  for (const weights::SafetensorsFile& file : weights->files()) all.push_back(file.path());
  if (!files.adapter.empty())
    for (const char* name : {spec::kAdapterConfig, spec::kAdapterWeights})
      all.push_back(files.adapter / name);
  const Result<fs::path> kept = data::make_cache_folder(job.resolve(job.data.cache_dir));
  std::string hashes;
  for (const fs::path& file : all) {
    hashes +=
        value_or_throw(kept.ok() ? data::content_hash(*kept, file) : data::hash_of_file(file));
  }
  return hash_of(hashes);
}

class Computation {
 public:
  explicit Computation(Context& context)
      : context_(context),
        groups_(context.model_groups.of(spec::ModelId::kReference)),
        ranks_(context.ranks),
        train_(context.data.train.size()),
        total_(train_ + context.data.held_out.size()),
        file_(context.job.output_folder() / kReferenceLogProbsFile),
        all_(at::zeros({static_cast<std::int64_t>(total_), 2}, at::kFloat)) {}

  ReferenceLogProbs run() {
    read();
    if (done_ < total_) compute();
    return {part(0, train_), part(train_, total_ - train_)};
  }

 private:
  [[nodiscard]] at::Tensor part(std::size_t first, std::size_t count) const {
    return all_.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
  }

  // Reads what an earlier run left.
  void read() {
    parallel::run_collectively(ranks_, [&] {
      if (!ranks_.first()) return;
      identity_ = hash_of(format(
          "{} {} {} {}{}", hash_of_rows(context_.data.train), hash_of_rows(context_.data.held_out),
          hash_of_model(context_.job, context_.worker_spec(spec::ModelId::kReference)),
          c10::toString(context_.runtime.compute_dtype()),
          context_.job.device.multiplies_in_fp8() ? " fp8" : ""));
      std::error_code ignored;
      if (fs::exists(file_, ignored)) read_file();
    });
    std::vector<double> done = {static_cast<double>(done_)};
    ranks_.sum(done);
    done_ = static_cast<std::size_t>(done[0]);
    if (done_ > 0 && !ranks_.alone()) ranks_.broadcast(all_, 0);
  }
  void read_file() {
    try {
      const weights::SafetensorsFile file = weights::SafetensorsFile::open(file_);
      const auto identity = file.metadata().find(kIdentity);
      if (identity == file.metadata().end() || identity->second != identity_) {
        log::warn(
            format("{} is of other rows, another reference or another type: the reference's "
                   "log-probabilities are computed anew",
                   file_.string()));
        return;
      }
      const std::vector<std::int64_t>& shape = weights::entry_of(file, kTensor).shape;
      const std::size_t pairs = shape.empty() ? 0 : static_cast<std::size_t>(shape[0]);
      weights::load_tensors(file, {{kTensor, part(0, std::min(pairs, total_))}});
      done_ = pairs;
    } catch (const Error& e) {
      log::warn(format("{}: the reference's log-probabilities are computed anew", e.what()));
      return;
    }
    log::info(format("{} has the reference's log-probabilities of {} of {} pairs", file_.string(),
                     done_, total_));
  }

  void compute() {
    train::ModelWorker reference(context_.runtime, groups_,
                                 context_.worker_spec(spec::ModelId::kReference));
    const auto held =
        context_.runtime.hold({spec::TagId{spec::TagKind::kWeights, reference.spec().id}});
    parallel::run_collectively(ranks_, [&] { reference.load(); });
    std::optional<Progress> progress;
    if (ranks_.first()) {
      progress.emplace("reference log-probabilities", total_, "pairs");
      progress->update(done_);
    }
    const std::size_t batch = batch_size();
    const std::size_t round = ((total_ + batch - 1) / batch + kSaves - 1) / kSaves * batch;
    while (done_ < total_) {
      // Training and held-out rows are in different files.
      const std::size_t end = done_ < train_ ? train_ : total_;
      compute_round(reference.model(), std::min(done_ + round, end), progress);
      parallel::run_collectively(ranks_, [&] { save(); });
    }
    throw_if_error(held->close());
  }
  // For the ranks that share the reference's batches.
  [[nodiscard]] parallel::BatchSharder sharder() const {
    return parallel::BatchSharder(groups_.data());
  }
  [[nodiscard]] std::size_t batch_size() const {
    return static_cast<std::size_t>(context_.job.data.train_batch_size);
  }

  // Computes pairs [done_, end), in batches of the size that the phase was planned for. The last
  // batch of a file is filled up with earlier pairs, so that it has the same shape.
  void compute_round(ops::Transformer& reference, std::size_t end,
                     std::optional<Progress>& progress) {
    const bool held_out = done_ >= train_;
    const Rows& rows = held_out ? context_.data.held_out : context_.data.train;
    const std::size_t offset = held_out ? train_ : 0;
    struct Part {
      at::Tensor mine;  // (this rank's, 2)
      std::size_t seen, fresh;
    };
    std::vector<Part> parts;
    run_phase(context_, spec::PhaseId::kReferenceLogProbs, [&] {
      for (std::size_t first = done_; first < end; first += parts.back().fresh) {
        const std::size_t fresh = std::min(batch_size(), end - first);
        const std::size_t seen = std::min(batch_size() - fresh, first - offset);
        std::vector<std::size_t> numbers(seen + fresh);
        std::iota(numbers.begin(), numbers.end(), first - offset - seen);
        Pairs pairs;
        // Ranks with ZeRO shards must compute together, so reading must fail on all or none.
        parallel::run_collectively(ranks_, [&] {
          try {
            pairs = gather_pairs(context_, rows, sharder().of_padded(numbers));
          } catch (const Error& e) {
            throw Error(while_running(e.status()));
          }
        });
        const TokenLogProbs out = log_probs_in_phase(context_, reference, pairs.sequences,
                                                     spec::PhaseId::kReferenceLogProbs);
        const bridge::HostScope host;
        at::Tensor sums;
        if (out.log_probs.defined()) sums = out.log_probs.sum(-1).view({2, -1}).t().contiguous();
        parts.push_back({sums, seen, fresh});
        if (progress) progress->update(first + fresh);
      }
    });
    for (const Part& p : parts) {
      part(done_, p.fresh)
          .copy_(sharder()
                     .gather(context_.from_last_stage(spec::ModelId::kReference, p.mine), 1)
                     .narrow(0, static_cast<std::int64_t>(p.seen),
                             static_cast<std::int64_t>(p.fresh)));
      done_ += p.fresh;
    }
  }
  void save() {
    if (ranks_.first())
      weights::save_tensors(file_, {{kTensor, part(0, done_)}}, {{kIdentity, identity_}});
  }

  Context& context_;
  const parallel::Groups& groups_;  // of the reference
  parallel::Communicator& ranks_;
  std::size_t train_, total_;  // numbers of pairs
  std::size_t done_ = 0;
  fs::path file_;
  std::string identity_;  // of the first rank
  at::Tensor all_;        // (total, 2)
};

}  // namespace

ReferenceLogProbs compute_reference_log_probs(Context& context) {
  return Computation(context).run();
}

at::Tensor select_pairs(const at::Tensor& log_probs, const std::vector<std::size_t>& numbers) {
  const bridge::HostScope host;
  const at::Tensor out = at::empty({2, static_cast<std::int64_t>(numbers.size())}, at::kFloat);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    out.select(1, static_cast<std::int64_t>(i))
        .copy_(log_probs[static_cast<std::int64_t>(numbers[i])]);
  }
  return out.view({-1});
}

}  // namespace neap::rlhf

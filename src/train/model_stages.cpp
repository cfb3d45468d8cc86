// What stages of a pipeline do together with a model: its files on the first one, and copies that are equal.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "train/model_worker.h"

namespace neap::train {

at::Tensor ModelWorker::on_first_stage(std::int64_t stage, const at::Tensor& like) const {
  const bridge::HostScope host;
  if (stages().rank() == stage) {
    at::Tensor mine = like.cpu();
    if (stage == 0) return mine;
    stages().send(mine, 0);
    return {};
  }
  if (stages().rank() != 0) return {};
  at::Tensor out = at::empty(like.sizes(), like.options().device(at::kCPU));
  stages().receive(out, static_cast<int>(stage));
  return out;
}

at::Tensor ModelWorker::unit_of_stages(const std::vector<spec::FlatUnit>& whole,
                                       const std::vector<std::size_t>& numbers,
                                       const std::optional<model::UnitCuts>& cuts,
                                       const std::vector<at::Tensor>& mine,
                                       std::size_t unit) const {
  const std::int64_t stage = stage_of(whole[unit]);
  const bridge::HostScope host;
  at::Tensor like =
      at::empty({1}, at::dtype(runtime_.compute_dtype())).expand({whole[unit].elements});
  if (stages().rank() == stage) {
    const auto place =
        static_cast<std::size_t>(std::find(numbers.begin(), numbers.end(), unit) - numbers.begin());
    like = cuts ? gather_unit(*cuts, place, mine[place]) : mine[place];
  }
  if (!groups_.tensor().first()) return {};
  return on_first_stage(stage, like);
}

void ModelWorker::expect_equal_tables() const {
  if (!spec_.whole.ties_table(spec_.head)) return;
  // In two numbers that a double holds.
  std::vector<double> sum;
  if (spec_.shape.embeds() || spec_.shape.has_head()) {
    const auto all = static_cast<std::uint64_t>(sum_of_bits(weights_.front()));
    sum = {static_cast<double>(all >> 32), static_cast<double>(all & 0xffffffffU)};
  }
  const std::vector<double> both = stages().join(sum);
  if (both[0] == both[2] && both[1] == both[3]) return;
  throw Error(
      ErrorCode::kInternal,
      format("The embedding of the {} model on the first stage and its copy on the last one "
             "differ",
             spec_.name()));
}

}  // namespace neap::train

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

void ModelWorker::gather_stage_states(const StatePieceSink& sink) {
  const std::vector<spec::WholeState> own = placement_->states();
  const std::vector<spec::WholeState> all = whole_states();
  const std::vector<spec::FlatUnit> units = whole_trained_layout();
  const auto bytes = static_cast<std::int64_t>(model::TensorCheck::kPiece);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const spec::WholeState& state = all[i];
    const std::int64_t stage = stage_of(units[state.unit]);
    at::Tensor mine;
    if (stages().rank() == stage)
      mine = gather_state(*std::find_if(own.begin(), own.end(), [&](const spec::WholeState& each) {
        return each.name == state.name;
      }));
    if (!groups_.data().first() || !groups_.tensor().first()) continue;
    const std::int64_t most = bytes / element_bytes(state.dtype);
    for (std::int64_t at = 0; at < state.elements; at += most) {
      const std::int64_t count = std::min(most, state.elements - at);
      const at::Tensor piece = on_first_stage(
          stage, mine.defined()
                     ? mine.narrow(0, at, count)
                     : at::empty({1}, at::dtype(model::to_aten(state.dtype))).expand({count}));
      if (piece.defined())
        sink(i, static_cast<std::uint64_t>(at * element_bytes(state.dtype)), piece);
    }
  }
}

void ModelWorker::expect_equal_tables() const {
  if (spec_.head != spec::Head::kLanguageModel || !spec_.whole.tie_word_embeddings) return;
  // The sum over the bits, in two numbers that a double holds.
  std::vector<double> sum;
  if (spec_.shape.embeds() || spec_.shape.has_head()) {
    const at::Tensor& table = weights_.front();
    const at::ScalarType bits = table.element_size() == 2 ? at::kShort : at::kInt;
    const auto all =
        static_cast<std::uint64_t>(table.view(bits).sum(at::kLong).item<std::int64_t>());
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

// Operations of all pipeline stages on a model; data-parallel copies are equal.
#include <ATen/ATen.h>

#include "base/format.h"
#include "base/status.h"
#include "train/model_worker.h"

namespace neap::train {

void ModelWorker::expect_equal_tables() const {
  if (!spec_.whole.ties_table(spec_.head)) return;
  // As two numbers that a double holds exactly.
  const auto halves = [](std::uint64_t all) {
    return std::vector<double>{static_cast<double>(all >> 32),
                               static_cast<double>(all & 0xffffffffU)};
  };
  std::vector<double> sum;
  if (spec_.shape.embeds() || spec_.shape.has_head()) {
    auto all = static_cast<std::uint64_t>(sum_of_bits(weights_.front()));
    if (sliced_) {
      const std::vector<double> slices = groups_.shards().join(halves(all));
      all = 0;
      for (std::size_t i = 0; i < slices.size(); i += 2)
        all += (static_cast<std::uint64_t>(slices[i]) << 32) +
               static_cast<std::uint64_t>(slices[i + 1]);
    }
    sum = halves(all);
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

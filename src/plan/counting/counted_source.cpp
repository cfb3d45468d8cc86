#include "plan/counting/counted_source.h"

#include <algorithm>

namespace neap::plan {
namespace {

using step::CountedTensor;

CountedTensor longs(const step::Shape& s) {
  return CountedTensor::outside(s, step::Dtype::kInt64);
}
CountedTensor floats(const step::Shape& s) {
  return CountedTensor::outside(s, step::Dtype::kFloat32);
}

}  // namespace

const step::GenerationAction* CountedSource::next() {
  return at_ == actions_.size() ? nullptr : &actions_[at_++];
}

step::PromptBatch<CountedTensor> CountedSource::prompts(const step::PrefillPrompts& action) const {
  std::int64_t copies = 0;
  for (const auto& rows : action.rows_by_prompt()) copies = std::max(copies, std::ssize(rows));
  const std::int64_t prompts = std::ssize(action.lengths);
  return {longs({prompts, action.width}), longs({prompts}), longs({copies, prompts}),
          longs({std::ssize(action.rows)})};
}

step::ChunkBatch<CountedTensor> CountedSource::chunk(const step::PrefillChunk& action) const {
  return {longs({action.count}), longs({std::ssize(action.rows)})};
}

step::DecodeRows<CountedTensor> CountedSource::decode_rows(std::int64_t rows) const {
  return {longs({rows}), longs({rows}), longs({rows})};
}

step::Draw<CountedTensor> CountedSource::draw(const std::vector<std::int64_t>& rows,
                                              std::int64_t steps, std::int64_t width) const {
  const std::int64_t n = std::ssize(rows);
  const CountedTensor uniforms = steps > 1 ? floats({steps, n}) : floats({n});
  if (!sampling_.penalizes()) return {uniforms, {}, {}};
  return {uniforms, longs({n, width}), floats({n, width})};
}

}  // namespace neap::plan

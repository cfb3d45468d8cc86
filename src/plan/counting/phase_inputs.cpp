#include "plan/counting/phase_inputs.h"

#include <algorithm>

#include "step/attention/context_calls.h"

namespace neap::plan {
namespace {

// With context parallelism, a call takes a limited number of sequences, each with one to three
// ranges.
std::vector<std::int64_t> further_divided(const step::KernelProfile& profile,
                                          const spec::Architecture& shape,
                                          const step::PackingLimits& packing,
                                          const step::SequenceLimits& limits, std::int64_t ranks) {
  std::vector<std::int64_t> found;
  std::int64_t most = 0;
  for (std::int64_t n = packing.sequences; n > 0; n -= limits.of_row) {
    if (n > step::kSequencesOfCall) continue;
    const std::int64_t tokens = std::min(packing.tokens, n * limits.longest);
    const std::int64_t rows =
        std::min((tokens + n * (ranks - 1)) / ranks, n * spec::rows_of_each(limits.longest, ranks));
    std::int64_t largest = 0;
    for (std::int64_t ranges = 1; ranges <= spec::kRangesOfSequence; ++ranges) {
      const step::FlashScratch scratch =
          step::flash_backward_scratch({.sequences = ranges * n,
                                        .heads = shape.num_attention_heads,
                                        .key_heads = shape.num_key_value_heads,
                                        .width = shape.head_dim,
                                        .packed_rows = rows},
                                       profile.deterministic, profile.device);
      largest = std::max(largest, scratch.accumulator + scratch.row_sums);
    }
    if (largest <= most) continue;
    most = largest;
    if (n != packing.sequences) found.push_back(n);
  }
  return found;
}

}  // namespace

std::vector<std::int64_t> further_sequences(const step::KernelProfile& profile,
                                            const spec::Architecture& shape,
                                            const step::PackingLimits& packing,
                                            const step::SequenceLimits& limits,
                                            std::int64_t ranks) {
  if (profile.cuda && ranks > 1) return further_divided(profile, shape, packing, limits, ranks);
  if (!profile.cuda || !profile.deterministic) return {};
  const step::AttentionSizes sizes{.sequences = packing.sequences,
                                   .heads = shape.num_attention_heads,
                                   .key_heads = shape.num_key_value_heads,
                                   .width = shape.head_dim,
                                   .packed_rows = packing.tokens};
  return step::sequences_of_more_scratch(sizes, limits.longest, limits.of_row, profile.device);
}

step::Spans<step::CountedTensor> micro_batch_spans(const spec::Job& job, const spec::Phase& phase) {
  const spec::Batching batching = spec::batching_of(job, phase);
  const std::int64_t length = job.max_sequence_length();
  if (batching.tokens == 0) return {batching.rows * batching.sequences_of_row, length};
  const step::PackedLayout layout =
      step::extreme_layout(batching.most_rows, batching.tokens,
                           {length, job.data.max_response_length, batching.sequences_of_row},
                           {.ranks = job.context_ranks(phase.model)});
  const std::int64_t sequences = layout.micro_batches.front().count * batching.sequences_of_row;
  step::Spans<step::CountedTensor> spans{sequences, length};
  spans.lengths.assign(layout.lengths.begin(), layout.lengths.begin() + sequences);
  spans.context = job.context_shard(phase.model);
  return spans;
}

std::int64_t micro_batches(const spec::Job& job, const spec::Phase& phase) {
  const spec::Batching batching = spec::batching_of(job, phase);
  if (batching.tokens == 0) return step::div_up(batching.most_rows, batching.rows);
  return step::most_micro_batches(
      batching.most_rows, batching.tokens,
      {job.max_sequence_length(), job.data.max_response_length, batching.sequences_of_row});
}

}  // namespace neap::plan

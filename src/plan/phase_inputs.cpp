#include "plan/phase_inputs.h"

namespace neap::plan {

std::vector<std::int64_t> further_sequences(const step::KernelProfile& profile,
                                            const spec::Architecture& shape,
                                            const step::PackingLimits& packing,
                                            const step::SequenceLimits& limits) {
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
                           {.ranks = job.context_ranks()});
  const std::int64_t sequences = layout.micro_batches.front().count * batching.sequences_of_row;
  step::Spans<step::CountedTensor> spans{sequences, length};
  spans.lengths.assign(layout.lengths.begin(), layout.lengths.begin() + sequences);
  spans.context = {job.context_ranks(), 0};
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

// The pool of a rollout whose sequences end and start at any time, against its plan.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <variant>

#include "plan/counting/counted_backend.h"
#include "plan/counting/counted_memory.h"
#include "plan/counting/counted_model.h"
#include "plan/counting/counted_source.h"
#include "plan/counting/graph_sizes.h"
#include "plan/counting/transients.h"
#include "step/generation/decode_graphs.h"
#include "step/generation/generation.h"

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::Dtype;

class GenerationPool : public ::testing::Test {
 protected:
  // The demo's PPO: 64 sequences at a time, more of them in validation.
  GenerationPool() {
    job_.task = spec::Task::kPpo;
    job_.data.train_batch_size = kRows;
    job_.data.max_prompt_length = kPrompt;
    job_.data.max_response_length = kResponse;
    job_.data.val_files = {"held_out.jsonl"};
    models_.actor.emplace();
    models_.actor->shape =
        value_or_throw(spec::Architecture::from_folder(NEAP_SOURCE_DIR "/examples/reviews/model"));
  }
  [[nodiscard]] Bytes planned(Accuracy accuracy) const {
    const spec::Recipe recipe = spec::describe(job_);
    return value_or_throw(predict_phase(job_, models_, target_, recipe.phases.front(), accuracy))
        .transient;
  }
  static CountedTensor host(const step::Shape& shape, Dtype dtype) {
    return CountedTensor::outside(shape, dtype);
  }
  // A rollout that starts with all rows, then with as many prompts and rows as chance has it.
  [[nodiscard]] Bytes taken(std::uint64_t seed, int steps, std::int64_t fewest) const {
    CountedMemory memory(value_or_throw(pool_settings(job_, target_)));
    step::CountingOps ops(memory, kernel_profile(job_, target_), 2);
    const step::Weights<CountedTensor> weights = counted_weights(*models_.actor, Dtype::kFloat32);
    const spec::Architecture& a = models_.actor->shape;
    step::SlotCache<CountedTensor> cache;
    cache.keys.assign(
        weights.blocks.size(),
        host({kRows, a.num_key_value_heads, kPrompt + kResponse, a.head_dim}, Dtype::kFloat32));
    cache.values = cache.keys;
    std::mt19937_64 random(seed);
    const auto between = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    for (int i = 0; i < steps; ++i) {
      const std::int64_t prompts = i == 0 ? kRows : between(fewest, kRows);
      const std::int64_t rows = i == 0 ? kRows : between(fewest, kRows);
      const std::int64_t limit = kPrompt + between(1, kResponse - 1);
      const auto longs = [](const step::Shape& s) { return host(s, Dtype::kInt64); };
      const step::PromptBatch<CountedTensor> batch{longs({prompts, kPrompt}), longs({prompts}),
                                                   longs({1, prompts}), longs({prompts})};
      const step::Rotations<CountedTensor> rotations =
          step::make_rotations(ops, a, kPrompt + kResponse);
      (void)step::prefill_and_sample(ops, weights, rotations, batch, {{}, kPrompt},
                                     {host({prompts}, Dtype::kFloat32), {}, {}}, cache, {});
      step::DecodeRows<CountedTensor> now = step::on_device(
          ops, step::DecodeRows<CountedTensor>{longs({rows}), longs({rows}), longs({rows})});
      (void)step::decode_and_sample(ops, weights, rotations, now,
                                    {host({rows}, Dtype::kFloat32), {}, {}}, cache,
                                    step::DecodeStep{rows, limit}, {});
    }
    return memory.peak_reserved();
  }

  struct Peak {
    Bytes phase;  // of its tensors
    std::uint64_t graphs = 0;
  };
  // The peak of body(ops, dtype).
  template <class Body>
  [[nodiscard]] Peak peak(const Body& body) const {
    CountedMemory memory(value_or_throw(pool_settings(job_, target_)));
    step::KernelProfile profile = kernel_profile(job_, target_);
    profile.graphs = graphs_;
    step::CountingOps ops(memory, profile, 2);
    body(ops, compute_dtype(job_, target_));
    return {memory.peak_allocated(), ops.graphs_made().scratch()};
  }
  [[nodiscard]] spec::Recipe recipe() const {
    spec::StepModes modes;
    modes.graphs = graphs_;
    return spec::describe(job_, modes);
  }
  [[nodiscard]] Peak peak_of_plan() const {
    const spec::Recipe recipe = this->recipe();
    return peak([&](step::CountingOps& ops, Dtype dtype) {
      count_phase(ops, job_, models_, dtype, recipe.phases.front(), 48);
    });
  }
  [[nodiscard]] Peak peak_of(const std::vector<step::GenerationAction>& actions) const {
    return peak([&](step::CountingOps& ops, Dtype dtype) {
      step::AnyCache<CountedTensor> any =
          counted_cache(*models_.actor, dtype, step::cache_shape(job_));
      const step::SamplingOptions sampling;
      CountedSource source(actions, sampling);
      std::visit(
          [&](auto& cache) {
            step::run_generation(ops, counted_weights(*models_.actor, dtype), cache, source);
          },
          any);
    });
  }

  static constexpr std::int64_t kRows = 64, kPrompt = 24, kResponse = 40;
  spec::Job job_;
  JobModels models_;
  Target target_;
  bool graphs_ = false;
};

TEST_F(GenerationPool, FewerPromptsMayTakeMoreThanAllOfThem) {
  // One round of the largest passes, as a search counts, does not see it.
  EXPECT_GT(taken(1, 400, 1), planned(Accuracy::kQuick));
  EXPECT_EQ(taken(1, 1, kRows), planned(Accuracy::kQuick));
}

TEST_F(GenerationPool, ThePlanHoldsWhateverEndsFirst) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(taken(seed, 400, 1), planned(Accuracy::kExact)) << seed;
}

TEST_F(GenerationPool, PromptsThatNeverWaitCostNothing) {
  job_.data.val_files.clear();
  EXPECT_EQ(planned(Accuracy::kExact), taken(1, 1, kRows));
}

// The actions of a rollout whose sequences end by chance.
class RolloutActions {
 public:
  RolloutActions(const spec::Job& job, std::int64_t n, bool cuda, std::mt19937_64& random)
      : random_(random) {
    step::CacheShape cache = step::cache_shape(job);
    if (!cache.paged()) cache.pages = cache.rows * (cache.row_pages() + 1);
    pages_ = step::PageTable(cache);
    std::vector<step::SequenceStart> sequences;
    for (std::size_t prompt = 0; prompt < 24; ++prompt) {
      const std::int64_t tokens = between(1, job.data.max_prompt_length);
      for (std::int64_t k = 0; k < n; ++k) sequences.push_back({prompt, tokens});
    }
    const step::GenerationLimits limits{job.rollout_batch(),
                                        job.max_sequence_length(),
                                        job.data.max_prompt_length,
                                        job.data.max_response_length,
                                        job.prefill(),
                                        step::steps_of_a_read(cuda, {}),
                                        cuda};
    schedule_.emplace(*step::GenerationSchedule::make(
        limits, std::move(sequences),
        {[this](std::int64_t row, const step::RowStart& s) { return pages_.start(row, s); },
         [this](std::int64_t row, std::int64_t tokens) { return pages_.grow(row, tokens); }}));
  }
  [[nodiscard]] std::vector<step::GenerationAction> list() {
    std::vector<step::GenerationAction> out;
    while (const step::GenerationAction* action = *schedule_->next()) {
      out.push_back(*action);
      std::visit([&](const auto& a) { add_tokens(a); }, out.back());
    }
    return out;
  }

 private:
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  void add_token(std::int64_t row) {
    (void)schedule_->add_token(schedule_->sequence_of(row), between(1, 4) == 1);
  }
  void add_tokens(const step::PrefillPrompts& action) {
    for (const std::int64_t row : action.rows) add_token(row);
  }
  void add_tokens(const step::PrefillChunk& action) {
    if (!action.last) return;
    for (const std::int64_t row : action.rows) add_token(row);
  }
  void add_tokens(const step::DecodeStep& action) {
    for (std::int64_t i = 0; i < action.steps * action.rows; ++i) {
      const std::int64_t row = i % action.rows;
      if (schedule_->sequence_of(row) != step::GenerationSchedule::kIdle) add_token(row);
    }
  }
  template <class Other>
  void add_tokens(const Other&) {}

  void add_tokens(const step::EndRow& action) { pages_.end(action.row); }
  void add_tokens(const step::MoveRow& action) { pages_.move(action.from, action.to); }

  std::mt19937_64& random_;
  step::PageTable pages_;  // or slots, each of which has its pages
  std::optional<step::GenerationSchedule> schedule_;
};

TEST_F(GenerationPool, ThePlanHoldsARolloutsActions) {
  std::mt19937_64 random(7);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    target_.cuda = between(0, 1) == 1;
    graphs_ = target_.cuda && between(0, 1) == 1;
    const bool held_out = between(0, 1) == 1;
    job_.task = held_out ? spec::Task::kEval : spec::Task::kGrpo;
    job_.data.train_batch_size = between(1, 16);
    job_.data.max_prompt_length = between(1, 3) == 1 ? between(64, 200) : between(1, 60);
    job_.data.max_response_length = between(2, 8);
    job_.rollout.n = held_out ? 1 : between(1, 4);
    job_.rollout.batch_size = between(1, 16);
    job_.rollout.max_num_batched_tokens = between(1, 400);
    job_.rollout.val_kwargs.n = between(1, 4);
    job_.rollout.val_kwargs.do_sample = true;
    const std::int64_t n = held_out ? job_.rollout.val_kwargs.n : job_.rollout.n;
    job_.rollout.max_total_tokens = between(0, 1) * between(256, 640);
    // The plan's steps take their tokens from the host; a run on the host keeps those of the step before.
    const Bytes tokens(target_.cuda ? 0 : 512);
    const Peak planned = peak_of_plan(),
               taken = peak_of(RolloutActions(job_, n, target_.cuda, random).list());
    EXPECT_LE(taken.phase, planned.phase + tokens);
    EXPECT_LE(taken.graphs, planned.graphs);
    EXPECT_EQ(planned.graphs > 0, graphs_);
  }
}

TEST_F(GenerationPool, PagesTakeTheCachesMemory) {
  job_.task = spec::Task::kEval;
  const auto cache = [&] {
    const std::vector<TagPlan> tags = build_tags(job_, recipe(), models_, target_);
    return std::find_if(tags.begin(), tags.end(),
                        [](const TagPlan& tag) { return tag.id.kind == spec::TagKind::kKeyValues; })
        ->regions.front();
  };
  const auto seconds = [&] {
    return value_or_throw(predict_phase(job_, models_, target_, recipe().phases.front())).seconds;
  };
  const spec::Architecture& a = models_.actor->shape;
  const std::uint64_t of_token =
      static_cast<std::uint64_t>(2 * a.blocks() * a.num_key_value_heads * a.head_dim) *
      static_cast<std::uint64_t>(element_bytes(compute_dtype(job_, target_)));
  const Bytes slots = cache().bytes;
  EXPECT_EQ(slots, Bytes(of_token * kRows * (kPrompt + kResponse)));
  const double together = seconds();
  job_.rollout.max_total_tokens = 640;
  const RegionPlan pages = cache();
  ASSERT_EQ(pages.parts.size(), 2U);
  EXPECT_EQ(pages.parts[0].bytes, Bytes(of_token * 11 * 64));
  EXPECT_EQ(pages.parts[1].bytes, Bytes(kRows * 8));
  EXPECT_GT(seconds(), 1.5 * together);  // ten of the longest sequences have pages together

  EXPECT_TRUE(step::no_pages_reason(a, false, Dtype::kFloat32, {}).empty());
  EXPECT_TRUE(step::no_pages_reason(a, true, Dtype::kBfloat16, {true}).empty());
  EXPECT_FALSE(step::no_pages_reason(a, true, Dtype::kFloat32, {true}).empty());
  EXPECT_FALSE(step::no_pages_reason(a, true, Dtype::kBfloat16, {false}).empty());
}

// The order in which tokens are made and taken.
class OrderOfTokens : public CountedSource {
 public:
  using CountedSource::CountedSource;
  [[nodiscard]] step::Draw<CountedTensor> draw(const std::vector<std::int64_t>& rows,
                                               std::int64_t steps, std::int64_t width) {
    order += 'm';
    return CountedSource::draw(rows, steps, width);
  }
  void take(const std::vector<std::size_t>&, const step::Sampled<CountedTensor>&) { order += 't'; }
  std::string order;
};

TEST_F(GenerationPool, AGPUHasTheNextStepsBeforeTheHostReadsTokens) {
  step::SamplingOptions sampling;
  const auto order = [&](bool cuda, bool graphs) {
    target_.cuda = cuda;
    graphs_ = graphs;
    std::string out;
    (void)peak([&](step::CountingOps& ops, Dtype dtype) {
      step::SlotCache<CountedTensor> cache =
          counted_cache(*models_.actor, dtype, job_.rollout_batch(), job_.max_sequence_length());
      const step::PrefillPrompts prompts{kPrompt, {kPrompt}, {0, 2}, {0, 0}};
      const std::vector<step::GenerationAction> actions = {
          step::ClearCache{},
          prompts,
          step::DecodeStep{4, kPrompt, 4},
          step::DecodeStep{4, 30, 4},
          step::EndRow{0},
          step::MoveRow{2, 0, 34},
          step::PrefillPrompts{kPrompt, {kPrompt}, {1}, {0}},
          step::DecodeStep{2, 34, 4}};
      OrderOfTokens source(actions, sampling);
      step::run_generation(ops, counted_weights(*models_.actor, dtype), cache, source);
      out = source.order;
    });
    return out;
  };
  EXPECT_EQ(order(true, true), "mmtmtmtmtt");
  EXPECT_EQ(order(true, false), "mmtmtmtmtt") << "as with graphs, so that a plan changes no text";
  EXPECT_EQ(order(false, false), "mtmtmtmtmt");
  sampling.presence_penalty = 1;
  EXPECT_EQ(order(true, false), "mtmtmtmtmt");
}

TEST_F(GenerationPool, GraphsTakeDecodingOutOfThePhase) {
  target_.cuda = true;
  const std::vector<step::GenerationAction> decoding = {step::DecodeStep{kRows, kPrompt, 4}};
  const Bytes decoded = peak_of(decoding).phase;
  const auto planned = [&] {
    return value_or_throw(predict_phase(job_, models_, target_, recipe().phases.front()));
  };
  const PhasePlan eager = planned();
  EXPECT_TRUE(eager.graph_scratch.is_zero());
  graphs_ = true;
  const PhasePlan in_graphs = planned();
  EXPECT_LT(peak_of(decoding).phase, Bytes(decoded.count() / 10));
  EXPECT_LT(in_graphs.seconds, 0.6 * eager.seconds);
  const auto scratch = [&](Dtype dtype, const step::SamplingOptions& sampling) {
    return graph_scratch(*models_.actor, dtype, step::cache_shape(job_), sampling,
                         kernel_profile(job_, target_));
  };
  step::SamplingOptions sampling = step::sampling_options(job_.rollout);
  EXPECT_EQ(scratch(Dtype::kBfloat16, sampling), in_graphs.graph_scratch);
  EXPECT_TRUE(scratch(Dtype::kFloat32, sampling).is_zero());
  sampling.presence_penalty = 1;
  EXPECT_TRUE(scratch(Dtype::kBfloat16, sampling).is_zero());
  job_.rollout.presence_penalty = 1;
  EXPECT_TRUE(planned().graph_scratch.is_zero());

  // Seven graphs: 1, 2, 4 .. 64 rows.
  const std::uint64_t nodes = in_graphs.graph_nodes.count() / step::kGraphNodeBytes;
  EXPECT_EQ(nodes % 7, 0U);
  EXPECT_GT(nodes / 7, 10 * static_cast<std::uint64_t>(models_.actor->shape.blocks()));
  target_.cuda = false;
  EXPECT_TRUE(scratch(Dtype::kBfloat16, {}).is_zero());
}

}  // namespace
}  // namespace neap::plan

// The plan's streams against the passes that they mirror: the same model run by libtorch, its
// requests given to the same caching allocator.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "model/transformer.h"
#include "plan/network_stream.h"
#include "unit/planned/recording_allocator.h"

namespace neap::plan {
namespace {

using testing::RecordingAllocator;

constexpr std::int64_t kBatch = 8, kLength = 64, kResponse = 48;

ModelShape llama(std::int64_t kv_heads) {
  ModelShape s;
  s.vocab_size = 2048;
  s.hidden_size = 384;
  s.intermediate_size = 1024;
  s.num_hidden_layers = 4;
  s.num_attention_heads = 6;
  s.num_key_value_heads = kv_heads;
  s.head_dim = 64;
  s.max_position_embeddings = 128;
  return s;
}
ModelShape gpt2() {
  ModelShape s = llama(6);
  s.family = Family::kGpt2;
  s.model_type = "gpt2";
  s.hidden_act = "gelu_new";
  s.tie_word_embeddings = true;
  s.attention_bias = s.attention_output_bias = s.mlp_bias = true;
  return s;
}
ModelShape opt(bool norm_first) {
  ModelShape s = gpt2();
  s.family = Family::kOpt;
  s.model_type = "opt";
  s.hidden_act = "relu";
  s.position_offset = 2;
  s.norm_first = norm_first;
  if (!norm_first) s.word_embed_proj_dim = 192;
  return s;
}

struct Model {
  std::vector<at::Tensor> weights, grads, adapters, adapter_grads;
  std::optional<model::Transformer> transformer;
  explicit Model(const ModelRole& role) {
    for (const FlatUnit& unit : flat_layout(role.shape, role.head)) {
      weights.push_back(at::zeros({unit.elements}));
      grads.push_back(role.lora.rank > 0 ? at::Tensor() : at::zeros({unit.elements}));
    }
    std::optional<model::Lora> lora;
    if (role.lora.rank > 0) {
      for (const FlatUnit& unit : lora_layout(role.shape, role.head, role.lora)) {
        adapters.push_back(at::zeros({unit.elements}));
        adapter_grads.push_back(at::zeros({unit.elements}));
      }
      lora = model::Lora{role.lora, 16, {adapters, adapter_grads}};
    }
    transformer.emplace(role.shape, role.head, model::FlatTensors{weights, grads}, lora);
    model::initialize(*transformer, 1);
  }
};

struct Case {
  std::string name;
  ModelRole role;
};
std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](std::string name, const ModelShape& shape, Head head, bool checkpointing,
                       std::int64_t rank) {
    ModelRole role;
    role.name = "actor";
    role.shape = shape;
    role.head = head;
    role.trained = true;
    role.checkpointing = checkpointing;
    if (rank > 0) role.lora = {rank, {"all-linear"}};
    list.push_back({std::move(name), std::move(role)});
  };
  add("llama", llama(6), Head::kLanguageModel, false, 0);
  add("llama_grouped", llama(2), Head::kLanguageModel, false, 0);
  add("llama_grouped_recomputed", llama(2), Head::kLanguageModel, true, 0);
  add("llama_grouped_lora", llama(2), Head::kLanguageModel, false, 8);
  add("llama_grouped_scalar", llama(2), Head::kScalar, false, 0);
  add("gpt2", gpt2(), Head::kLanguageModel, false, 0);
  add("opt", opt(true), Head::kLanguageModel, false, 0);
  add("opt_recomputed_scalar", opt(true), Head::kScalar, true, 0);
  add("opt_350m_form", opt(false), Head::kLanguageModel, false, 0);
  return list;
}

// NEAP_SHOW_REQUESTS=1 prints both streams side by side where they part.
void show(const std::vector<std::int64_t>& real, const std::vector<std::int64_t>& planned) {
  if (std::getenv("NEAP_SHOW_REQUESTS") == nullptr) return;
  std::string a, b;
  for (const std::int64_t r : real) std::fprintf(stderr, "R %ld\n", static_cast<long>(r));
  for (const std::int64_t r : planned) std::fprintf(stderr, "P %ld\n", static_cast<long>(r));
}

class Planned : public ::testing::TestWithParam<std::size_t> {
 protected:
  Planned() : case_(cases()[GetParam()]), model_(case_.role) {
    execution_.threads = at::get_num_threads();
    tokens_ = at::arange(kBatch * kLength).remainder_(case_.role.shape.vocab_size);
    rows_ = at::arange(kBatch * kLength)
                .view({kBatch, kLength})
                .narrow(1, kLength - kResponse, kResponse)
                .reshape(-1);
    targets_ = at::zeros({kBatch * kResponse}, at::kLong);
  }
  [[nodiscard]] model::Batch batch() const {
    return model::Batch::padded(tokens_.view({kBatch, kLength}));
  }
  // Runs both twice, as micro batches follow each other, and compares peaks.
  void compare(const std::function<void()>& real,
               const std::function<void(NetworkStream&)>& planned) {
    RecordingAllocator& recorder = RecordingAllocator::instance();
    real();  // what libtorch makes once a process
    recorder.start();
    real();
    real();
    const cache::CacheStats stats = recorder.stop();
    TensorStream stream{cache::Settings{}};
    std::vector<std::int64_t> requests;
    stream.observe(
        [](void* context, Bytes size) {
          static_cast<std::vector<std::int64_t>*>(context)->push_back(
              static_cast<std::int64_t>(size.count()));
        },
        &requests);
    NetworkStream network(stream, case_.role, execution_);
    planned(network);
    planned(network);
    show(recorder.requests(), requests);
    const double measured = stats.peak_allocated.mib();
    EXPECT_NEAR(stream.peak_allocated().mib(), measured, 0.03 * measured) << case_.name;
    EXPECT_NEAR(stream.peak_reserved().mib(), stats.peak_reserved.mib(),
                0.03 * stats.peak_reserved.mib())
        << case_.name;
    EXPECT_EQ(stream.allocated(), Bytes()) << "a temporary leaks";
  }

  Case case_;
  Model model_;
  Execution execution_;
  at::Tensor tokens_, rows_, targets_;
};

TEST_P(Planned, Forward) {
  compare([&] { (void)model_.transformer->forward(batch()); },
          [&](NetworkStream& n) { (void)n.forward(kBatch, kLength); });
}

TEST_P(Planned, ForwardAndHead) {
  const bool scalar = case_.role.head == Head::kScalar;
  compare(
      [&] {
        const at::Tensor hidden = model_.transformer->forward(batch());
        if (scalar) {
          (void)model_.transformer->scores(hidden, rows_);
        } else {
          model::LogProbOptions options;
          options.entropy = true;
          (void)model_.transformer->log_probs(hidden, rows_, targets_, options);
        }
      },
      [&](NetworkStream& n) {
        const Temporary hidden = n.forward(kBatch, kLength);
        if (scalar) {
          (void)n.scores(kBatch * kResponse);
        } else {
          (void)n.log_probs(kBatch * kResponse, true);
        }
      });
}

TEST_P(Planned, Training) {
  const bool scalar = case_.role.head == Head::kScalar;
  const at::Tensor d = at::ones({kBatch * kResponse});
  compare(
      [&] {
        model::Transformer& t = *model_.transformer;
        const auto tape = t.forward_train(batch(), {case_.role.checkpointing, nullptr});
        if (scalar) {
          (void)t.scores(tape->hidden(), rows_);
          tape->backward(t.scores_backward(tape->hidden(), rows_, d));
        } else {
          const model::LogProbs out = t.log_probs(tape->hidden(), rows_, targets_);
          tape->backward(t.log_probs_backward(tape->hidden(), rows_, targets_, out, d));
        }
      },
      [&](NetworkStream& n) {
        NetworkStream::Tape tape = n.forward_train(kBatch, kLength);
        if (scalar) {
          (void)n.scores(kBatch * kResponse);
          Temporary dh = n.scores_backward(kBatch * kLength, kBatch * kResponse);
          n.backward(std::move(tape), std::move(dh));
        } else {
          const auto out = n.log_probs(kBatch * kResponse, false);
          Temporary dh = n.log_probs_backward(kBatch * kLength, kBatch * kResponse, false);
          n.backward(std::move(tape), std::move(dh));
        }
      });
}

TEST_P(Planned, CrossEntropyTraining) {
  if (case_.role.head == Head::kScalar) return;  // that head has none
  const at::Tensor weights = at::ones({kBatch * kResponse});
  compare(
      [&] {
        model::Transformer& t = *model_.transformer;
        const auto tape = t.forward_train(batch(), {case_.role.checkpointing, nullptr});
        const auto out = t.cross_entropy(tape->hidden(), rows_, targets_, weights);
        tape->backward(out.d_hidden);
      },
      [&](NetworkStream& n) {
        NetworkStream::Tape tape = n.forward_train(kBatch, kLength);
        const auto out = n.cross_entropy(kBatch * kLength, kBatch * kResponse);
        n.backward(std::move(tape), out.d_hidden);
      });
}

TEST_P(Planned, Generation) {
  if (case_.role.head == Head::kScalar) return;
  const ModelShape& shape = case_.role.shape;
  const at::Tensor flat = at::zeros({model::KvCache::elements(shape, kBatch, kLength)});
  model::KvCache cache = model::KvCache::over(flat, shape, kBatch, kLength);
  const at::Tensor prompts = tokens_.view({kBatch, kLength}).narrow(1, 0, 16).contiguous();
  const at::Tensor lengths = at::full({kBatch}, 16, at::kLong);
  const at::Tensor next = at::zeros({kBatch}, at::kLong);
  compare(
      [&] {
        model::Transformer& t = *model_.transformer;
        (void)t.logits(t.prefill(prompts, lengths, cache));
        for (std::int64_t i = 16; i < kLength; ++i)
          (void)t.logits(t.decode(next, at::full({kBatch}, i, at::kLong), cache, i + 1));
      },
      [&](NetworkStream& n) {
        {
          const Temporary hidden = n.prefill(kBatch, 16);
          (void)n.logits(kBatch);
        }
        for (std::int64_t i = 16; i < kLength; ++i) {
          const Temporary hidden = n.decode(kBatch, i + 1);
          (void)n.logits(kBatch);
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Models, Planned, ::testing::Range<std::size_t>(0, cases().size()),
                         [](const auto& test) { return cases()[test.param].name; });

}  // namespace
}  // namespace neap::plan

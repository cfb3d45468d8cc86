// The plan's streams against the passes that they mirror: the same model run by libtorch, its
// requests given to the same caching allocator.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "model/transformer.h"
#include "plan/network_stream.h"
#include "unit/planned/recording_allocator.h"

namespace neap::plan {
namespace {

using testing::RecordingAllocator;

// NEAP_PLANNED_DEVICE=cuda runs the same on a GPU, in bfloat16 and larger.
bool on_gpu() {
  const char* device = std::getenv("NEAP_PLANNED_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}
const std::int64_t kBatch = on_gpu() ? 4 : 8, kLength = on_gpu() ? 640 : 64, kPrompt = kLength / 4,
                   kResponse = kLength - kPrompt;

spec::ModelShape llama(std::int64_t kv_heads) {
  spec::ModelShape s;
  s.vocab_size = on_gpu() ? 32000 : 2048;
  s.hidden_size = on_gpu() ? 768 : 384;
  s.intermediate_size = on_gpu() ? 2304 : 1024;
  s.num_hidden_layers = 4;
  s.num_attention_heads = s.hidden_size / 64;
  s.num_key_value_heads = kv_heads;
  s.head_dim = 64;
  s.max_position_embeddings = 1024;
  return s;
}
spec::ModelShape gpt2() {
  spec::ModelShape s = llama(0);
  s.num_key_value_heads = s.num_attention_heads;
  s.family = spec::Family::kGpt2;
  s.model_type = "gpt2";
  s.hidden_act = "gelu_new";
  s.tie_word_embeddings = true;
  s.attention_bias = s.attention_output_bias = s.mlp_bias = true;
  return s;
}
spec::ModelShape opt(bool norm_first) {
  spec::ModelShape s = gpt2();
  s.family = spec::Family::kOpt;
  s.model_type = "opt";
  s.hidden_act = "relu";
  s.position_offset = 2;
  s.norm_first = norm_first;
  if (!norm_first) s.word_embed_proj_dim = s.hidden_size / 2;
  return s;
}

// Memory that lives as regions do: one block that fills its segment, so that the passes' temporaries
// find nothing free beside it.
class Persistent {
 public:
  at::Tensor make(std::int64_t elements, at::ScalarType dtype) {
    if (!on_gpu()) return at::zeros({elements}, dtype);
    constexpr std::int64_t kBytes = std::int64_t{4} << 30;
    if (!block_.defined()) {
      // cuBLAS takes its workspace at the first product and keeps it: here, in a segment of its own.
      const at::Tensor a = at::ones({64, 64}, at::dtype(at::kBFloat16).device(at::kCUDA));
      (void)at::addmm(a.select(0, 0), a, a);
      (void)at::mm(a, a);
      block_ = at::zeros({kBytes}, at::dtype(at::kByte).device(at::kCUDA));
    }
    const std::int64_t bytes =
        (elements * static_cast<std::int64_t>(c10::elementSize(dtype)) + 511) / 512 * 512;
    const at::Tensor part = block_.narrow(0, used_, bytes).view(dtype).narrow(0, 0, elements);
    used_ += bytes;
    return part;
  }
  at::Tensor keep(const at::Tensor& t) {
    const at::Tensor out = make(t.numel(), t.scalar_type());
    out.copy_(t.reshape(-1));
    return out.view(t.sizes());
  }

 private:
  at::Tensor block_;
  std::int64_t used_ = 0;
};

struct Model {
  std::vector<at::Tensor> weights, grads, adapters, adapter_grads;
  std::optional<model::Transformer> transformer;
  Model(const ModelRole& role, Persistent& memory) {
    const at::ScalarType dtype = on_gpu() ? at::kBFloat16 : at::kFloat;
    for (const spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head)) {
      weights.push_back(memory.make(unit.elements, dtype));
      grads.push_back(role.lora.rank > 0 ? at::Tensor() : memory.make(unit.elements, at::kFloat));
    }
    std::optional<model::Lora> lora;
    if (role.lora.rank > 0) {
      for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora)) {
        adapters.push_back(memory.make(unit.elements, dtype));
        adapter_grads.push_back(memory.make(unit.elements, at::kFloat));
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
  const auto add = [&](std::string name, const spec::ModelShape& shape, spec::Head head,
                       bool checkpointing, std::int64_t rank) {
    ModelRole role;
    role.name = "actor";
    role.shape = shape;
    role.head = head;
    role.trained = true;
    role.checkpointing = checkpointing;
    if (rank > 0) role.lora = {rank, {"all-linear"}};
    list.push_back({std::move(name), std::move(role)});
  };
  add("llama", llama(on_gpu() ? 12 : 6), spec::Head::kLanguageModel, false, 0);
  add("llama_grouped", llama(2), spec::Head::kLanguageModel, false, 0);
  add("llama_grouped_recomputed", llama(2), spec::Head::kLanguageModel, true, 0);
  add("llama_grouped_lora", llama(2), spec::Head::kLanguageModel, false, 8);
  add("llama_grouped_scalar", llama(2), spec::Head::kScalar, false, 0);
  add("gpt2", gpt2(), spec::Head::kLanguageModel, false, 0);
  add("opt", opt(true), spec::Head::kLanguageModel, false, 0);
  add("opt_recomputed_scalar", opt(true), spec::Head::kScalar, true, 0);
  add("opt_350m_form", opt(false), spec::Head::kLanguageModel, false, 0);
  return list;
}

// NEAP_SHOW_REQUESTS=1 prints both streams side by side where they part.
void show(const std::vector<std::int64_t>& real, const std::vector<std::int64_t>& planned) {
  if (std::getenv("NEAP_SHOW_REQUESTS") == nullptr) return;
  for (const std::int64_t r : real) std::fprintf(stderr, "R %ld\n", static_cast<long>(r));
  for (const std::int64_t r : planned) std::fprintf(stderr, "P %ld\n", static_cast<long>(r));
}

class Planned : public ::testing::TestWithParam<std::size_t> {
 protected:
  Planned() : case_(cases()[GetParam()]) {
    if (on_gpu() && dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      throw std::runtime_error(dlerror());
    model_.emplace(case_.role, memory_);
    execution_.cuda = on_gpu();
    execution_.width = on_gpu() ? 2 : 4;
    execution_.threads = at::get_num_threads();
    tokens_ = memory_.keep(at::arange(kBatch * kLength).remainder_(case_.role.shape.vocab_size));
    rows_ = memory_.keep(at::arange(kBatch * kLength)
                             .view({kBatch, kLength})
                             .narrow(1, kPrompt, kResponse)
                             .reshape(-1));
    targets_ = memory_.keep(at::zeros({kBatch * kResponse}, at::kLong));
    ones_ = memory_.keep(at::ones({kBatch * kResponse}));
  }
  [[nodiscard]] model::Transformer& transformer() { return *model_->transformer; }
  [[nodiscard]] model::Batch batch() const {
    return model::Batch::padded(tokens_.view({kBatch, kLength}));
  }

  struct Peaks {
    Bytes allocated, reserved;
    std::vector<std::int64_t> requests;
  };
  // Both twice, as micro batches follow each other.
  static Peaks measure(const std::function<void()>& real) {
    real();  // what libtorch makes once a process
    Peaks peaks;
    if (on_gpu()) {
      c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(c10::DeviceType::CUDA);
      allocator.emptyCache();
      allocator.resetPeakStats(0);
      const auto before = allocator.getDeviceStats(0);
      real();
      real();
      const auto after = allocator.getDeviceStats(0);
      const auto grown = [](const auto& to, const auto& from) {
        return Bytes(static_cast<std::uint64_t>(to[0].peak - from[0].current));
      };
      peaks.allocated = grown(after.allocated_bytes, before.allocated_bytes);
      peaks.reserved = grown(after.reserved_bytes, before.reserved_bytes);
      return peaks;
    }
    RecordingAllocator& recorder = RecordingAllocator::instance();
    recorder.start();
    real();
    real();
    const cache::CacheStats stats = recorder.stop();
    return {stats.peak_allocated, stats.peak_reserved, recorder.requests()};
  }
  void compare(const std::function<void()>& real,
               const std::function<void(NetworkStream&)>& planned) {
    const Peaks measured = measure(real);
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
    show(measured.requests, requests);
    RecordProperty("planned_allocated", std::to_string(stream.peak_allocated().count()));
    RecordProperty("measured_allocated", std::to_string(measured.allocated.count()));
    EXPECT_NEAR(stream.peak_allocated().mib(), measured.allocated.mib(),
                0.03 * measured.allocated.mib());
    EXPECT_NEAR(stream.peak_reserved().mib(), measured.reserved.mib(),
                0.03 * measured.reserved.mib());
    EXPECT_EQ(stream.allocated(), Bytes()) << "a temporary leaks";
  }

  Case case_;
  Persistent memory_;
  std::optional<Model> model_;
  Execution execution_;
  at::Tensor tokens_, rows_, targets_, ones_;
};

TEST_P(Planned, Forward) {
  compare([&] { (void)transformer().forward(batch()); },
          [&](NetworkStream& n) { (void)n.forward(kBatch, kLength); });
}

TEST_P(Planned, ForwardAndHead) {
  const bool scalar = case_.role.head == spec::Head::kScalar;
  compare(
      [&] {
        const at::Tensor hidden = transformer().forward(batch());
        if (scalar) {
          (void)transformer().scores(hidden, rows_);
        } else {
          model::LogProbOptions options;
          options.entropy = true;
          (void)transformer().log_probs(hidden, rows_, targets_, options);
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
  const bool scalar = case_.role.head == spec::Head::kScalar;
  compare(
      [&] {
        model::Transformer& t = transformer();
        const auto tape = t.forward_train(batch(), {case_.role.checkpointing, nullptr});
        if (scalar) {
          (void)t.scores(tape->hidden(), rows_);
          tape->backward(t.scores_backward(tape->hidden(), rows_, ones_));
        } else {
          const model::LogProbs out = t.log_probs(tape->hidden(), rows_, targets_);
          tape->backward(t.log_probs_backward(tape->hidden(), rows_, targets_, out, ones_));
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
  if (case_.role.head == spec::Head::kScalar) return;  // that head has none
  compare(
      [&] {
        model::Transformer& t = transformer();
        const auto tape = t.forward_train(batch(), {case_.role.checkpointing, nullptr});
        const auto out = t.cross_entropy(tape->hidden(), rows_, targets_, ones_);
        tape->backward(out.d_hidden);
      },
      [&](NetworkStream& n) {
        NetworkStream::Tape tape = n.forward_train(kBatch, kLength);
        const auto out = n.cross_entropy(kBatch * kLength, kBatch * kResponse);
        n.backward(std::move(tape), out.d_hidden);
      });
}

TEST_P(Planned, Generation) {
  if (case_.role.head == spec::Head::kScalar) return;
  const spec::ModelShape& shape = case_.role.shape;
  const at::Tensor flat = memory_.make(model::KvCache::elements(shape, kBatch, kLength),
                                       on_gpu() ? at::kBFloat16 : at::kFloat);
  model::KvCache cache = model::KvCache::over(flat, shape, kBatch, kLength);
  const at::Tensor prompts =
      memory_.keep(tokens_.view({kBatch, kLength}).narrow(1, 0, kPrompt).contiguous());
  const at::Tensor lengths = memory_.keep(at::full({kBatch}, kPrompt, at::kLong));
  const at::Tensor next = memory_.keep(at::zeros({kBatch}, at::kLong));
  compare(
      [&] {
        model::Transformer& t = transformer();
        (void)t.logits(t.prefill(prompts, lengths, cache));
        for (std::int64_t i = kPrompt; i < kLength; ++i) {
          const at::Tensor at_i = at::full({kBatch}, i, next.options());
          (void)t.logits(t.decode(next, at_i, cache, i + 1));
        }
      },
      [&](NetworkStream& n) {
        {
          const Temporary hidden = n.prefill(kBatch, kPrompt);
          (void)n.logits(kBatch);
        }
        for (std::int64_t i = kPrompt; i < kLength; ++i) {
          const Temporary hidden = n.decode(kBatch, i + 1);
          (void)n.logits(kBatch);
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Models, Planned, ::testing::Range<std::size_t>(0, cases().size()),
                         [](const auto& test) { return cases()[test.param].name; });

}  // namespace
}  // namespace neap::plan

// Decoding in CUDA graphs on a card, against the same steps launched one by one.
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "arena/arena.h"
#include "base/random.h"
#include "bridge/compute_stream.h"
#include "bridge/step_graphs.h"
#include "bridge/torch_cuda.h"
#include "bridge/torch_cuda_memory.h"
#include "device/cuda/cuda_device.h"
#include "plan/counting/counted_model.h"
#include "plan/counting/counted_source.h"
#include "rollout/generation.h"
#include "step/generation/decode_graphs.h"
#include "unit/ops/tiny_model.h"

namespace neap::rollout {
namespace {

using at::Tensor;
using ops::testing::Form;

constexpr std::int64_t kRows = 7, kPrompt = 12, kNew = 30;
const at::Device kCard(at::kCUDA, 0);

std::vector<Form> forms() {
  std::vector<Form> out;
  for (Form& form : ops::testing::forms()) {
    if (form.shape.attention_softcap > 0) continue;  // decoded by products
    form.shape.hidden_size = 64;
    form.shape.head_dim = 16;
    if (!form.shape.projects_embedding()) form.shape.embedding_dim = 64;
    if (form.shape.rotary.dimensions > 0) form.shape.rotary.dimensions = 16;
    out.push_back(form);
  }
  return out;
}

struct Outcome {
  std::vector<Response> responses;
  std::vector<step::GenerationAction> actions;
  std::size_t graphs = 0, nodes = 0;
  std::uint64_t extent = 0;
};
// A small model in bfloat16 on the card, in tensors of its own or in given ones.
class SmallModel {
 public:
  using Make = std::function<Tensor(std::int64_t elements)>;
  static Tensor own(std::int64_t elements) {
    return at::zeros({elements}, at::TensorOptions().device(kCard).dtype(at::kBFloat16));
  }
  explicit SmallModel(const spec::Architecture& shape, const Make& make = own,
                      const std::optional<spec::LoraShape>& lora = std::nullopt)
      : shape_(shape),
        lora_(lora.value_or(spec::LoraShape{})),
        host_(shape, spec::Head::kLanguageModel, lora, at::kFloat) {
    const auto on_card = [&](const std::vector<Tensor>& units) {
      std::vector<Tensor> out;
      out.reserve(units.size());
      for (const Tensor& unit : units) out.push_back(make(unit.numel()).copy_(unit));
      return out;
    };
    std::optional<ops::Lora> adapters;
    if (lora) adapters = ops::Lora{*lora, {on_card(host_.adapter_weights), {}}};
    model_.emplace(shape, spec::Head::kLanguageModel, ops::FlatTensors{on_card(host_.weights), {}},
                   adapters, std::nullopt, bridge::KernelChoice{.own = {true}});
    cells_ = make(ops::KvCache::elements(shape, kRows, kPrompt + kNew));
    cache_ = ops::KvCache::over(cells_, shape, kRows, kPrompt + kNew);
  }

  // Twenty prompts of four texts in seven rows: rows start, move and end.
  Outcome generate(const step::SamplingOptions& sampling, const Tensor& scratch,
                   std::int64_t new_tokens = kNew, std::size_t count = 20) {
    std::vector<Prompt> prompts;
    for (std::size_t i = 0; i < count; ++i) {
      const auto text = static_cast<std::int64_t>(i / 5);
      Prompt prompt{{}, random_key({11, i})};
      for (std::int64_t t = 0; t < 3 * text + 2; ++t)
        prompt.tokens.push_back((7 * t + text) % shape_.vocab_size);
      prompts.push_back(std::move(prompt));
    }
    Outcome out;
    GenerateOptions options;
    options.sampling = sampling;
    options.prompt_width = kPrompt;
    options.max_new_tokens = new_tokens;
    options.eos_token_ids = {3, 17};
    options.prefill = spec::prefill_shape(kRows, kPrompt, 1 << 20);
    options.on_action = [&](const step::GenerationAction& a) { out.actions.push_back(a); };
    const bridge::NoAutograd no_autograd;
    std::unique_ptr<bridge::StepGraphs> graphs;
    if (scratch.defined()) graphs = bridge::StepGraphs::make(scratch);
    model_->ops().set_graphs(graphs.get());
    LiveSource source(*model_, cache_, prompts, options);
    step::run_generation(model_->ops(), model_->weights(), cache_, source);
    model_->ops().set_graphs(nullptr);
    out.responses = source.take_responses();
    if (graphs) {
      out.graphs = graphs->graphs();
      out.nodes = graphs->nodes();
      out.extent = graphs->extent();
    }
    return out;
  }

  // A plan counts these actions.
  [[nodiscard]] step::CountedGraphs counted(const Outcome& run,
                                            const step::SamplingOptions& sampling) const {
    step::ScratchSink sink;
    step::KernelProfile profile;
    profile.cuda = profile.graphs = true;
    profile.own = {true};
    step::CountingOps ops(sink, profile, 1 << 20);
    plan::ModelRole role;
    role.shape = shape_;
    role.lora = lora_;
    step::SlotCache<step::CountedTensor> cache =
        plan::counted_cache(role, step::Dtype::kBfloat16, kRows, kPrompt + kNew);
    plan::CountedSource source(run.actions, sampling);
    step::run_generation(ops, plan::counted_weights(role, step::Dtype::kBfloat16), cache, source);
    return ops.graphs_made();
  }

 private:
  spec::Architecture shape_;
  spec::LoraShape lora_;
  ops::testing::TestModel host_;
  std::optional<ops::Transformer> model_;
  Tensor cells_;
  ops::KvCache cache_;
};

std::vector<std::pair<const char*, step::SamplingOptions>> samplings() {
  step::SamplingOptions all, sorted, least;
  all.log_probs = sorted.log_probs = true;
  sorted.top_k = 9;
  sorted.top_p = 0.8;
  sorted.temperature = 0.7;
  least.min_p = 0.1;
  return {{"all", all}, {"sorted", sorted}, {"min_p", least}, {"greedy", step::greedy_sampling()}};
}

class OnCard : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!bridge::torch_cuda().available) GTEST_SKIP() << bridge::torch_cuda().reason;
    stream_.emplace(kCard);
    current_.emplace(*stream_);
    bridge::make_cublas_workspaces(0);
  }
  static Tensor scratch(std::int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions().device(kCard).dtype(at::kByte));
  }
  std::optional<bridge::ComputeStream> stream_;
  std::optional<bridge::ComputeStream::Current> current_;
};
class GraphsOnCard : public OnCard, public ::testing::WithParamInterface<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, GraphsOnCard, ::testing::ValuesIn(forms()),
                         [](const auto& i) { return i.param.name; });

TEST_P(GraphsOnCard, GiveTheBitsOfStepsLaunchedOneByOne) {
  SmallModel model(GetParam().shape);
  for (const auto& [name, sampling] : samplings()) {
    SCOPED_TRACE(name);
    const Outcome eager = model.generate(sampling, {});
    const Outcome graphs = model.generate(sampling, scratch(64 << 20));
    ASSERT_TRUE(eager.responses == graphs.responses);
    EXPECT_GE(graphs.graphs, 1u);
    const step::CountedGraphs counted = model.counted(graphs, sampling);
    EXPECT_EQ(counted.scratch(), graphs.extent) << "the plan's region";
    std::printf("%s: %zu graphs, %zu nodes (%.0f operations counted), %llu bytes of scratch\n",
                name, graphs.graphs, graphs.nodes, counted.kernels(),
                static_cast<unsigned long long>(graphs.extent));
    // That size is enough, and a unit less is not: then steps are not captured, and the run fails.
    const auto size = static_cast<std::int64_t>(graphs.extent);
    const Outcome exact = model.generate(sampling, scratch(size));
    EXPECT_TRUE(exact.responses == eager.responses);
    EXPECT_EQ(exact.graphs, graphs.graphs);
    EXPECT_ANY_THROW((void)model.generate(sampling, scratch(size - 512)));
  }
}

TEST_P(GraphsOnCard, GiveTheBitsOfAdaptersLaunchedOneByOne) {
  SmallModel model(GetParam().shape, SmallModel::own, spec::LoraShape{8, {"all-linear"}});
  const step::SamplingOptions sampling;
  const Outcome eager = model.generate(sampling, {});
  const Outcome graphs = model.generate(sampling, scratch(64 << 20));
  EXPECT_TRUE(eager.responses == graphs.responses);
  EXPECT_GE(graphs.graphs, 1u);
  EXPECT_EQ(model.counted(graphs, sampling).scratch(), graphs.extent) << "the plan's region";
}

// libtorch's allocator keeps the same bytes before and after, so it holds nothing of a graph.
TEST_P(GraphsOnCard, LeaveNothingBehind) {
  SmallModel model(GetParam().shape);
  const Tensor region = scratch(64 << 20);
  const auto live = [] {
    return c10::getDeviceAllocator(c10::DeviceType::CUDA)
        ->getDeviceStats(0)
        .allocated_bytes[0]
        .current;
  };
  (void)model.generate({}, region);
  const std::int64_t before = live();
  for (int i = 0; i < 20; ++i) (void)model.generate({}, region, 8, 5);
  EXPECT_EQ(live(), before);
}

// Two jobs of a process may generate at once.
TEST_F(OnCard, TwoThreadsHaveTheirOwn) {
  const auto count = [&](float step, Tensor& sum) {
    const bridge::ComputeStream::Current current(*stream_);
    const auto graphs = bridge::StepGraphs::make(scratch(1 << 20));
    for (int i = 0; i < 200; ++i)
      graphs->run({i % 3, 0}, [&] { sum.add_(at::full({1}, step, sum.options())); });
    EXPECT_LE(graphs->graphs(), 3u);
  };
  Tensor ones = at::zeros({1}, at::TensorOptions().device(kCard)), twos = at::zeros_like(ones);
  std::thread other([&] { count(2, twos); });
  other.join();
  count(1, ones);
  EXPECT_EQ(ones.item<float>(), 200);
  EXPECT_EQ(twos.item<float>(), 400);
}

// The driver keeps no more for graphs than a plan counts.
TEST_F(OnCard, TakeTheMemoryThatAPlanCounts) {
  const auto free_bytes = [] {
    (void)at::zeros({1}, at::TensorOptions().device(kCard)).item<float>();
    return static_cast<std::int64_t>(
        c10::getDeviceAllocator(c10::DeviceType::CUDA)->getMemoryInfo(0).first);
  };
  const Tensor region = scratch(8 << 20);
  const Tensor sum = at::zeros({64, 64}, at::TensorOptions().device(kCard));
  // Graphs as large as a model's, and as many as a generation keeps.
  const auto graphs = bridge::StepGraphs::make(region);
  const auto body = [&] {
    for (int i = 0; i < 700; ++i) sum.add_(at::ones({64, 64}, sum.options()));
  };
  body();
  const std::int64_t before = free_bytes();
  for (std::int64_t key = 0; key < 12; ++key)
    for (int i = 0; i < 3; ++i) graphs->run({key, 0}, body);
  const std::int64_t taken = before - free_bytes();
  EXPECT_EQ(graphs->graphs(), step::kMostGraphs) << "those used last";
  const auto nodes = static_cast<std::int64_t>(graphs->nodes());
  std::printf("%lld bytes of the driver for %lld nodes: %.0f a node\n",
              static_cast<long long>(taken), static_cast<long long>(nodes),
              static_cast<double>(taken) / static_cast<double>(nodes));
  EXPECT_LE(taken, nodes * static_cast<std::int64_t>(step::kGraphNodeBytes) + (2 << 20));
}

// A body that waits for the device cannot be captured.
TEST_F(OnCard, AFailedCaptureRunsTheStepsOneByOne) {
  const auto graphs = bridge::StepGraphs::make(scratch(1 << 20));
  const Tensor sum = at::zeros({1}, at::TensorOptions().device(kCard));
  int runs = 0;
  const auto body = [&] {
    ++runs;
    const Tensor one = at::ones({1}, sum.options());
    if (one.item<float>() == 1) sum.add_(one);
  };
  for (int i = 0; i < 4; ++i) graphs->run({8, 256}, body);
  EXPECT_EQ(graphs->graphs(), 0u);
  EXPECT_EQ(runs, 5) << "one of them was to be captured";
  EXPECT_EQ(sum.item<float>(), 4);
  // The stream captures nothing now, so another object can.
  const auto others = bridge::StepGraphs::make(scratch(1 << 20));
  for (int i = 0; i < 4; ++i)
    others->run({8, 256}, [&] { sum.add_(at::ones({1}, sum.options())); });
  EXPECT_EQ(others->graphs(), 1u);
  EXPECT_EQ(sum.item<float>(), 8);
}

TEST_F(OnCard, GiveTheSameTextsAfterAThousandCyclesOfPauseAndResume) {
  const auto device = value_or_throw(device::make_cuda_device(0));
  const auto arena = value_or_throw(arena::Arena::make(*device, {}));
  const auto in_arena = [&](const char* tag, arena::Policy policy, std::int64_t bytes) {
    const auto region =
        value_or_throw(arena->create(tag, Bytes(static_cast<std::uint64_t>(bytes)), policy));
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const data = reinterpret_cast<void*>(region.address);
    return at::from_blob(
        data, {bytes}, [](void*) {}, at::TensorOptions().device(kCard).dtype(at::kByte), kCard);
  };
  SmallModel model(forms().front().shape, [&](std::int64_t elements) {
    return in_arena("model", arena::Policy::kHost, 2 * elements).view(at::kBFloat16);
  });
  const Tensor region = in_arena("rollout.graphs", arena::Policy::kDiscard, 4 << 20);
  step::SamplingOptions sampling;
  sampling.log_probs = true;
  const Outcome first = model.generate(sampling, region, 6, 3);
  ASSERT_GE(first.graphs, 1u);
  for (int cycle = 0; cycle < 1000; ++cycle) {
    arena::PauseOptions options;
    options.release_pages = cycle % 2 == 0;
    ASSERT_TRUE(arena->pause({}, options).ok());
    ASSERT_TRUE(arena->resume({}).ok());
    ASSERT_TRUE(model.generate(sampling, region, 6, 3).responses == first.responses) << cycle;
  }
}

}  // namespace
}  // namespace neap::rollout

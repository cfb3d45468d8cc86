// Random jobs: every phase, run by the trainer's backend with libtorch, asks for the tensors that the
// plan's backend counts, request by request.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bridge/no_autograd.h"
#include "conformance.h"
#include "model/transformer.h"
#include "parallel/communicator.h"
#include "plan/counted_backend.h"
#include "plan/generation_passes.h"
#include "random_job.h"
#include "rlhf/live_backend.h"
#include "train/optimizer.h"

namespace neap::plan {
namespace {

using model::AtenOps;
using step::Dtype;

// Models and batches of a job with memory of their own, kept from one phase to the next.
class AtenWorld {
 public:
  using Ops = AtenOps;
  explicit AtenWorld(Dtype dtype)
      : ops_(testing::test_device()),
        options_(at::dtype(model::to_aten(dtype)).device(testing::test_device())) {}
  [[nodiscard]] AtenOps& ops() { return ops_; }
  [[nodiscard]] Dtype dtype() const { return model::to_step(options_.dtype().toScalarType()); }

  [[nodiscard]] static step::KernelProfile profile() { return testing::test_profile(); }
  [[nodiscard]] const step::Weights<at::Tensor>& weights(const ModelRole& role) {
    return model(role).weights();
  }
  [[nodiscard]] model::Transformer& model(const ModelRole& role) {
    const Outside outside;
    return *model_of(role).transformer;
  }
  [[nodiscard]] std::vector<step::TrainedUnit<at::Tensor>> units(const ModelRole& role) {
    const Outside outside;
    Model& m = model_of(role);
    const auto& weights = role.lora.rank > 0 ? m.adapters : m.weights;
    std::vector<step::TrainedUnit<at::Tensor>> out;
    for (const spec::FlatUnit& unit : trained_units(role)) {
      const std::size_t u = out.size();
      out.push_back(step::make_trained_unit(
          optimizer_of(role, dtype()), unit, std::ssize(out), weights[u], m.grads[u],
          [this](const spec::StateTensor& t) {
            return at::zeros({t.elements}, options_.dtype(model::to_aten(t.dtype)));
          }));
    }
    return out;
  }
  [[nodiscard]] step::SlotCache<at::Tensor> cache(const ModelRole& role, std::int64_t batch,
                                                  std::int64_t tokens) {
    const Outside outside;
    return model::KvCache::over(
        at::zeros({model::KvCache::elements(role.shape, batch, tokens)}, options_), role.shape,
        batch, tokens);
  }
  template <class Body>
  void weighted(double, const Body& body) {
    body();
  }
  [[nodiscard]] at::Tensor host(const step::Shape& shape, Dtype dtype, std::int64_t value) {
    const Outside outside;
    return at::full({shape.begin(), shape.rank()}, value, model::to_aten(dtype));
  }

 private:
  // What is there before a phase.
  struct Outside {
    bridge::HostScope host;
    testing::Unrecorded unrecorded;
  };
  struct Model {
    std::vector<at::Tensor> weights, adapters, grads;
    std::unique_ptr<model::Transformer> transformer;
  };
  // By what the passes see of a role: the reference shares the actor's base without its adapter.
  Model& model_of(const ModelRole& role) {
    Model& m = models_[role.name + (role.lora.rank > 0 ? "+" : "")];
    if (m.transformer) return m;
    for (const spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head))
      m.weights.push_back(at::rand({unit.elements}, at::kFloat).mul_(0.02).to(options_));
    std::optional<model::Lora> lora;
    model::FlatTensors base{m.weights, {}};
    if (role.lora.rank > 0) {
      for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora))
        m.adapters.push_back(at::zeros({unit.elements}, options_));
      lora = model::Lora{role.lora, {m.adapters, {}}};
    }
    if (role.trained) {
      for (const spec::FlatUnit& unit : trained_units(role))
        m.grads.push_back(at::zeros({unit.elements}, options_.dtype(model::to_aten(
                                                         optimizer_of(role, dtype()).gradients))));
      (lora ? lora->adapters.grads : base.grads) = m.grads;
    }
    m.transformer = std::make_unique<model::Transformer>(role.shape, role.head, base, lora);
    return m;
  }

  AtenOps ops_;
  at::TensorOptions options_;
  std::map<std::string, Model> models_;
};

parallel::Communicator& alone() {
  static const auto communicator = parallel::make_single();
  return *communicator;
}

// A phase as the trainer runs it, on data of the plan's sizes. Generations are compared by the passes
// that a plan counts.
void run_live(AtenWorld& world, const testing::RandomJob& r, const spec::Phase& phase,
              const std::function<void()>& begin) {
  const ModelRole role = role_of(r.models, phase);
  if (phase.body == spec::Body::kGenerate) {
    (void)world.weights(role);
    begin();
    return GenerationPasses<AtenWorld>(world, r.job).run(role, phase, 7);
  }
  const auto host = [&](const step::Shape& shape, Dtype dtype) {
    return world.host(shape, dtype, 0);
  };
  const step::KernelProfile profile = testing::test_profile();
  const auto e =
      PhaseInputs<at::Tensor, decltype(host)>(r.job, profile, host).experience(role.shape, phase);
  std::optional<train::Optimizer> optimizer;
  rlhf::LiveTraining training;
  if (phase.trains()) {
    optimizer.emplace(role.optimizer, optimizer_of(role, r.dtype), 7, world.units(role), alone());
    training.optimizer = &*optimizer;
    training.checkpointing = &role.checkpointing;
    training.updates = {0, spec::update_shape(r.job, phase.body).updates()};
    training.learning_rate = [](std::int64_t) { return 1e-3; };
    training.scale = [](std::int64_t) { return step::LossScale{1, 1, 1}; };
    training.for_each_window = [&](const auto& visit) { visit(0, optimizer->units().size()); };
  }
  rlhf::LiveBackend backend(r.job, world.model(role), e, training);
  begin();
  backend.run(phase);
}

void compare(std::uint64_t seed) {
  const testing::RandomJob r = testing::random_job(seed);
  AtenWorld world(r.dtype);
  spec::UpdateModes modes;
  // Odd seeds divide the updates: the same requests, in two phases.
  if (seed % 2 == 1) {
    for (const spec::ModelId model : spec::describe(r.job).trained())
      modes.set(model, spec::UpdateMode::kSplit);
  }
  const spec::Recipe recipe = spec::describe(r.job, modes);
  for (const spec::Phase& phase : recipe.phases) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
    const bridge::NoAutograd no_autograd;
    // On a GPU libraries keep what their first call makes.
    if (testing::test_device().is_cuda()) run_live(world, r, phase, [] {});
    run_live(world, r, phase, [] { testing::start_recording(); });
    const testing::Requests measured = testing::stop_recording();
    testing::RecordingSink sink;
    step::CountingOps ops(sink, testing::test_profile(), 1 << 20);
    count_phase(ops, r.job, r.models, r.dtype, phase, 7);
    ASSERT_EQ(testing::difference(measured, sink.requests), "");
    ASSERT_TRUE(sink.empty());
  }
}

// NEAP_REQUEST_SEEDS=FIRST:COUNT runs other seeds.
TEST(Requests, OfThreeHundredRandomJobsAreThoseOfThePlan) {
  std::uint64_t first = 1, count = 300;
  if (const char* seeds = std::getenv("NEAP_REQUEST_SEEDS"); seeds != nullptr) {
    char* end = nullptr;
    first = std::strtoull(seeds, &end, 10);
    if (*end == ':') count = std::strtoull(end + 1, nullptr, 10);
  }
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    compare(seed);
    // On a GPU every difference is wanted from one run.
    if (HasFatalFailure() && !testing::test_device().is_cuda()) return;
  }
}

}  // namespace
}  // namespace neap::plan

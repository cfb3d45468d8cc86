// A phase of a random job as the trainer runs it, on data of the plan's sizes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "aten_world.h"
#include "conformance.h"
#include "ops/transformer.h"
#include "plan/counting/counted_backend.h"
#include "plan/counting/counted_model.h"
#include "random_job.h"
#include "rlhf/trainer/live_backend.h"
#include "step/units/gradient_slots.h"
#include "train/optimizer.h"

namespace neap::plan {

inline step::KernelProfile profile_of(const testing::RandomJob& r, const spec::Phase& phase) {
  step::KernelProfile profile = testing::test_profile();
  profile.tensor_ranks = role_of(r.models, phase).shape.tensor.ranks;
  profile.context_ranks = r.job.context_ranks();
  profile.fp8 = r.job.device.multiplies_in_fp8();
  return profile;
}

// Every piece of an update, or every part where states are streamed; slots are the tensors themselves.
inline void for_each_part(const AtenWorld& world, const ModelRole& role, const spec::Phase& phase,
                          ops::AtenOps& ops, const std::vector<train::OptimizerUnit>& pieces,
                          const rlhf::LiveTraining::VisitPart& visit) {
  if (!phase.storage.streams_states()) {
    for (const train::OptimizerUnit& piece : pieces) visit(piece);
    return;
  }
  const step::UpdateParts parts = update_parts(role, world.dtype(), world.storage(role));
  for (const step::UpdatePart& part : parts.list()) {
    const train::OptimizerUnit& unit = pieces[part.piece];
    const auto in_slot = [&](const step::PartTensor& t) {
      using Kind = step::PartTensor::Kind;
      const at::Tensor& whole = t.kind == Kind::kWeights     ? unit.weights
                                : t.kind == Kind::kGradients ? unit.gradients
                                                             : unit.state[t.state];
      return whole.narrow(0, t.elements == part.count ? part.first - unit.first : 0, t.elements);
    };
    visit(step::part_of(ops, unit, part, parts.layout(part), in_slot));
  }
}

// Stages that are not there: they take what is sent and send zeros.
class NoStages final : public step::StageLinks<at::Tensor> {
 public:
  void send(const at::Tensor& t, std::int64_t) override { EXPECT_TRUE(t.is_contiguous()); }
  void receive(const at::Tensor& t, std::int64_t) override { at::Tensor(t).zero_(); }
  [[nodiscard]] std::vector<double> join(const std::vector<double>& mine) override { return mine; }
};

// Values of which gradients follow that are not zero.
inline void fill(step::Experience<at::Tensor>& e, std::int64_t vocabulary) {
  step::Sequences<at::Tensor>& s = e.sequences;
  s.mask.fill_(1);
  for (at::Tensor* tokens : {&s.tokens, &s.targets}) tokens->random_(vocabulary);
  if (s.packed)
    for (at::Tensor* tokens : {&s.packed->tokens, &s.packed->targets}) tokens->random_(vocabulary);
  for (at::Tensor* values : {&e.advantages, &e.returns, &e.reference_sums})
    if (values->defined()) values->uniform_(0.5, 1);
}

// A phase as the trainer runs it, on data of the plan's sizes.
inline void run_live(AtenWorld& world, const testing::RandomJob& r, const spec::Phase& phase,
                     const std::function<void()>& begin, bool filled = false) {
  const ModelRole role = role_of(r.models, phase);
  const auto host = [&](const step::Shape& shape, Dtype dtype) { return world.host(shape, dtype); };
  const step::KernelProfile profile = profile_of(r, phase);
  auto e = PhaseInputs<at::Tensor, decltype(host)>(
               r.job, profile, host, smaller_sizes(profile, r.job, r.models, r.dtype, phase))
               .experience(role.shape, phase, role.context_rank);
  if (filled) fill(e, role.shape.vocab_size);
  std::optional<train::Optimizer> optimizer;
  std::unique_ptr<step::GradientSlots<ops::AtenOps>> sink;
  rlhf::LiveTraining training;
  if (phase.trains()) {
    std::vector<train::OptimizerUnit> units = world.units(role);
    const std::optional<train::OptimizerSlice> slice = world.slice(role, units);
    if (phase.storage.shards_gradients) {
      sink = world.sink(role, units, *slice);
      for (train::OptimizerUnit& unit : units) unit.gradients = at::Tensor();
    }
    optimizer.emplace(role.optimizer, optimizer_of(role, r.dtype), 7, std::move(units),
                      world.ranks(), slice, /*reduced_together=*/1);
    step::GradientSink<at::Tensor>* to = sink.get();
    if (!sink) to = optimizer->gradient_sink();
    world.model(role).send_gradients(to);
    training.optimizer = &*optimizer;
    training.checkpointing = &role.checkpointing;
    training.updates = {0, spec::update_shape(r.job, phase.body).updates()};
    training.learning_rate = [](std::int64_t) { return 1e-3; };
    training.scale = [](std::int64_t) { return step::LossScale{1, 1, 1}; };
    training.for_each_part = [&](const auto& visit) {
      for_each_part(world, role, phase, world.model(role).ops(), optimizer->pieces(), visit);
    };
    training.gather_weights = [&] { optimizer->gather_weights(); };
  }
  NoStages others;
  world.model(role).ops().set_stages(&others);
  rlhf::LiveBackend backend(r.job, world.model(role), e, training);
  begin();
  backend.run(phase);
  world.model(role).send_gradients(nullptr);
}

}  // namespace neap::plan

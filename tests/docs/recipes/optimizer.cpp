// What a reader has after following the recipe "An optimizer" of CONTRIBUTING.md: the new kind is in the
// configuration, has its bytes, and its step asks for memory.
#include <cstdio>

#include "spec/job/job.h"
#include "step/counting/counting_ops.h"
#include "step/units/optimizer.h"

using namespace neap;

namespace {

struct Sink : step::MemorySink {
  std::int64_t requests = 0;
  std::uint64_t allocate(std::int64_t) override { return static_cast<std::uint64_t>(++requests); }
  void release(std::uint64_t) override {}
};

bool check(bool right, const char* what) {
  if (!right) std::printf("failed: %s\n", what);
  return right;
}

}  // namespace

int main() {
  spec::Job job;
  ConfigTable table = job.bind();
  const auto set = [&](const char* text) { return table.apply_override(text).ok(); };
  bool right =
      check(set("actor_rollout_ref.actor.optim.optimizer=sign_sgd"), "a configuration names it");
  right &= check(set("actor_rollout_ref.actor.optim.momentum=0.9"), "it reads momentum");
  const spec::OptimizerConfig& config = job.actor.optim;
  const auto spec = spec::OptimizerSpec::of(config, spec::Dtype::kBfloat16);
  if (!check(spec.ok(), "it has a spec")) return 1;
  spec::FlatUnit unit;
  unit.parameters = {{.name = "w", .shape = {16, 8}, .spread = {}}};
  unit.elements = 128;
  right &=
      check(spec::is_elementwise(spec->kind), "ranks cut its units anywhere, as its table says");
  right &= check(spec->state(unit).bytes() == Bytes(128 * 8), "a momentum buffer and a master");

  Sink sink;
  step::CountingOps ops(sink, {}, 2);
  const auto flat = [](std::int64_t n, spec::Dtype d) {
    return step::CountedTensor::outside({n}, d);
  };
  const auto trained = step::make_trained_unit(
      *spec, unit, 0, flat(128, spec->weights), flat(128, spec->gradients),
      [&](const spec::StateTensor& t) { return flat(t.elements, t.dtype); });
  step::step_unit(ops, trained, {*spec, config});
  right &= check(sink.requests == 1, "the signs are its only temporary");
  return right ? 0 : 1;
}

// A Runtime without a device: regions are plain tensors that are poisoned when a phase that does not
// keep them begins. For tests of the steps alone; the real one is tested with the real plan.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <map>
#include <set>
#include <string>

#include "model/transformer.h"
#include "plan/model_shape.h"
#include "torch/runtime.h"

namespace neap::rlhf {

class FakeRuntime final : public bridge::Runtime {
 public:
  void add_role(const std::string& role, const plan::ModelShape& shape, plan::Head head,
                bool trained) {
    for (const plan::FlatUnit& unit : plan::flat_layout(shape, head)) {
      add(role + ".weights", unit.name, unit.elements);
      if (!trained) continue;
      add(role + ".grads", unit.name, unit.elements);
      add(role + ".optimizer", unit.name, 2 * unit.elements);
    }
    if (trained) scratch_.insert(role + ".grads");
  }
  void add(const std::string& tag, const std::string& name, std::int64_t elements) {
    regions_[{tag, name}] = at::empty({elements}, at::TensorOptions().dtype(at::kFloat));
  }
  void add_cache(const plan::ModelShape& shape, std::int64_t batch, std::int64_t tokens) {
    add("rollout.kv", "kv", model::KvCache::elements(shape, batch, tokens));
    scratch_.insert("rollout.kv");
  }

  [[nodiscard]] at::Device device() const override { return at::kCPU; }
  [[nodiscard]] at::ScalarType compute_dtype() const override { return at::kFloat; }
  [[nodiscard]] const plan::MemoryPlan& plan() const override { return plan_; }
  [[nodiscard]] at::Tensor region(std::string_view tag, std::string_view name,
                                  at::ScalarType) override {
    return regions_.at({std::string(tag), std::string(name)});
  }
  [[nodiscard]] std::unique_ptr<Guard> hold(const std::vector<std::string>&) override {
    return std::make_unique<Guard>();
  }
  [[nodiscard]] std::unique_ptr<Guard> phase(std::string_view name) override {
    phases.emplace_back(name);
    // What a real cycle gives up between phases must not be relied upon.
    for (auto& [key, tensor] : regions_) {
      if (scratch_.contains(key.first)) {
        tensor.fill_(std::numeric_limits<float>::quiet_NaN());
      }
    }
    return std::make_unique<Guard>();
  }
  [[nodiscard]] std::vector<bridge::PhaseMeasurement> take_measurements() override { return {}; }
  [[nodiscard]] Bytes peak() const override { return {}; }
  [[nodiscard]] Bytes peak_allocated() const override { return {}; }
  [[nodiscard]] arena::Arena& arena() override { std::abort(); }

  std::vector<std::string> phases;

 private:
  std::map<std::pair<std::string, std::string>, at::Tensor> regions_;
  std::set<std::string> scratch_;
  plan::MemoryPlan plan_;
};

}  // namespace neap::rlhf

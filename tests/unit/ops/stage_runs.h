// A model trained by stages in threads, compared with one rank that trains all of it.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "bridge/no_autograd.h"
#include "spec/model/pipeline.h"
#include "step/pipeline/runner.h"
#include "tiny_model.h"

namespace neap::ops {

// Stages of one process. A send waits for its receive.
class Network {
 public:
  explicit Network(std::int64_t stages) : stages_(stages) {}

  void send(std::int64_t from, std::int64_t to, const at::Tensor& t) {
    std::unique_lock lock(mutex_);
    const at::Tensor*& place = places_[{from, to}];
    place = &t;
    changed_.notify_all();
    changed_.wait(lock, [&] { return place == nullptr; });
  }
  void receive(std::int64_t from, std::int64_t to, const at::Tensor& t) {
    std::unique_lock lock(mutex_);
    const at::Tensor*& place = places_[{from, to}];
    changed_.wait(lock, [&] { return place != nullptr; });
    EXPECT_EQ(place->sizes(), t.sizes());
    EXPECT_EQ(place->scalar_type(), t.scalar_type());
    EXPECT_TRUE(place->is_contiguous());
    at::Tensor(t).copy_(*place);
    place = nullptr;
    changed_.notify_all();
  }
  // A round ends when every stage has given its values.
  std::vector<double> join(std::int64_t stage, const std::vector<double>& mine) {
    std::unique_lock lock(mutex_);
    const std::int64_t round = rounds_[stage]++;
    std::map<std::int64_t, std::vector<double>>& values = joined_[round];
    values[stage] = mine;
    changed_.notify_all();
    changed_.wait(lock, [&] { return std::ssize(values) == stages_; });
    std::vector<double> out;
    for (const auto& [from, each] : values) out.insert(out.end(), each.begin(), each.end());
    return out;
  }

 private:
  std::int64_t stages_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::int64_t, std::int64_t>, const at::Tensor*> places_;
  std::map<std::int64_t, std::int64_t> rounds_;
  std::map<std::int64_t, std::map<std::int64_t, std::vector<double>>> joined_;
};

class Links final : public step::StageLinks<at::Tensor> {
 public:
  Links(Network& network, std::int64_t stage) : network_(network), stage_(stage) {}
  void send(const at::Tensor& t, std::int64_t to) override { network_.send(stage_, to, t); }
  void receive(const at::Tensor& t, std::int64_t from) override {
    network_.receive(from, stage_, t);
  }
  [[nodiscard]] std::vector<double> join(const std::vector<double>& mine) override {
    return network_.join(stage_, mine);
  }

 private:
  Network& network_;
  std::int64_t stage_;
};

// What a training phase needs; the rest of step::Backend is not asked for.
class TestBackend {
 public:
  using Ops = AtenOps;
  TestBackend(testing::TestModel& model, const step::Experience<at::Tensor>& experience,
              const spec::Checkpointing& keep)
      : model_(model), experience_(experience), keep_(keep) {
    const bool adapted = !model.adapter_weights.empty();
    const auto& weights = adapted ? model.adapter_weights : model.weights;
    const auto& grads = adapted ? model.adapter_grads : model.grads;
    const auto units = adapted ? spec::lora_layout(model.shape, model.head, lora())
                               : spec::flat_layout(model.shape, model.head);
    for (std::size_t u = 0; u < units.size(); ++u) {
      step::TrainedUnit<at::Tensor>& unit = units_.emplace_back();
      unit.unit = units[u];
      unit.weights = weights[u];
      unit.gradients = grads[u];
    }
  }
  [[nodiscard]] static spec::LoraShape lora() {
    return {.rank = 3, .targets = {"q_proj", "up_proj"}};
  }

  Ops& ops() { return model_.model->ops(); }
  const spec::Job& job() { return job_; }
  const step::Weights<at::Tensor>& weights() { return model_.model->weights(); }
  const step::Experience<at::Tensor>& experience() { return experience_; }
  void take_log_probs(const step::LogProbs<at::Tensor>& values) {
    log_probs.push_back(values.log_probs);
  }
  void take_scores(const at::Tensor&) {}
  KvCache& cache() { return cache_; }
  template <class Visit>
  void for_each_generation(const spec::Phase&, const Visit&) {}
  const spec::Checkpointing& checkpointing() { return keep_; }
  const std::vector<step::TrainedUnit<at::Tensor>>& units() { return units_; }
  const std::vector<step::TrainedUnit<at::Tensor>>& pieces() { return units_; }
  step::UpdateRange updates(const spec::Phase&) { return {}; }
  step::LossScale scale(std::int64_t) { return {}; }
  void take_numbers(const step::KeptNumbers<at::Tensor>& values) {
    for (const step::LossNumber& each : values.read(ops()))
      numbers.emplace_back(each.name, each.value);
  }
  void read_numbers() {}
  std::int64_t further_groups(std::int64_t) { return 0; }
  void reduce_gradients() {}
  template <class Visit>
  void beside(const Visit&) {}
  std::vector<double> all_norms(std::vector<double> own) { return own; }
  std::optional<step::Update> begin_step(std::int64_t, double) {
    return step::Update{optimizer_, config_};
  }
  template <class Visit>
  void for_each_part(const Visit&) {}
  void gather_weights() {}

  std::vector<std::pair<std::string, double>> numbers;
  std::vector<at::Tensor> log_probs;

 private:
  testing::TestModel& model_;
  const step::Experience<at::Tensor>& experience_;
  const spec::Checkpointing& keep_;
  std::vector<step::TrainedUnit<at::Tensor>> units_;
  spec::Job job_;
  KvCache cache_;
  spec::OptimizerSpec optimizer_;
  spec::OptimizerConfig config_;
};

struct Outcome {
  std::map<std::string, at::Tensor> gradients;
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<at::Tensor> log_probs;
  double norm = 0;
};

inline constexpr std::int64_t kRows = 12, kWidth = 9, kResponse = 5;

inline step::Experience<at::Tensor> experience_of(const spec::Architecture& shape) {
  step::Experience<at::Tensor> e;
  e.sequences.tokens = testing::tokens(kRows, kWidth, shape.vocab_size);
  e.sequences.columns =
      at::arange(kWidth - kResponse - 1, kWidth - 1, at::kLong).repeat({kRows, 1}).contiguous();
  e.sequences.targets = testing::tokens(kRows, kResponse, shape.vocab_size, 3);
  e.sequences.mask = testing::tokens(kRows, kResponse, 5, 1).gt(0).to(at::kFloat);
  e.sequences.last = at::full({kRows}, kWidth - 1, at::kLong);
  e.sequences.lengths = at::full({kRows}, kWidth, at::kLong);
  e.margins = at::zeros({kRows / 2});
  e.reference_sums = at::full({kRows}, -1.5F);
  return e;
}

// What a stage, or one rank, does with the mini-batch.
template <class Objective>
Outcome train(testing::TestModel& model, std::int64_t micro, const Objective& objective,
              const spec::CheckpointMode mode) {
  const bridge::NoAutograd no_autograd;
  at::set_num_threads(1);
  const step::Experience<at::Tensor> experience = experience_of(model.shape);
  const spec::Checkpointing keep = spec::checkpointing(mode, model.shape);
  TestBackend b(model, experience, keep);
  const std::int64_t rows = kRows / Objective::kSequencesOfRow;
  std::vector<step::MicroBatch> cuts;
  for (std::int64_t first = 0; first < rows; first += micro) cuts.push_back({first, micro});
  step::add_gradients(b, cuts, 1, objective);
  Outcome out;
  out.norm = step::gradient_norm(b);
  if (model.head == spec::Head::kLanguageModel)
    step::log_prob_phase(b.ops(), b.weights(), experience.sequences, {micro, 2}, {},
                         [&](const step::MicroBatch&, const step::LogProbs<at::Tensor>& values) {
                           b.take_log_probs(values);
                         });
  for (const auto& unit : b.units()) out.gradients[unit.unit.name] = unit.gradients;
  out.numbers = b.numbers;
  out.log_probs = b.log_probs;
  return out;
}

inline void expect_bits(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_TRUE(a.defined() && b.defined()) << what;
  EXPECT_TRUE(at::equal(a, b)) << what << " differs by " << (a - b).abs().max().item<double>();
}

struct Case {
  spec::Architecture shape;
  spec::Head head = spec::Head::kLanguageModel;
  bool lora = false;
  at::ScalarType dtype = at::kFloat;
  spec::CheckpointMode mode = spec::CheckpointMode::kNone;
};

inline std::optional<spec::LoraShape> lora_of(const Case& c) {
  return c.lora ? std::optional(TestBackend::lora()) : std::nullopt;
}

// The part of the whole model's weights.
inline testing::TestModel stage_model(const Case& c, const testing::TestModel& whole,
                                      std::int64_t stages, std::int64_t number) {
  testing::TestModel out(spec::stage_of(c.shape, c.head, stages, number, "actor").value(), c.head,
                         lora_of(c), c.dtype);
  const auto same = [](const auto& units, const auto& all, auto& to, const auto& from) {
    const std::vector<std::size_t> numbers = spec::numbers_in(all, units);
    for (std::size_t u = 0; u < units.size(); ++u) to[u].copy_(from[numbers[u]]);
  };
  same(spec::flat_layout(out.shape, c.head), spec::flat_layout(c.shape, c.head), out.weights,
       whole.weights);
  if (c.lora)
    same(spec::lora_layout(out.shape, c.head, *lora_of(c)),
         spec::lora_layout(c.shape, c.head, *lora_of(c)), out.adapter_weights,
         whole.adapter_weights);
  return out;
}

template <class Objective>
void compare(const Case& c, std::int64_t stages, std::int64_t micro, const Objective& objective) {
  testing::TestModel whole(c.shape, c.head, lora_of(c), c.dtype);
  const Outcome expected = train(whole, micro, objective, c.mode);
  Network network(stages);
  std::vector<Outcome> parts(static_cast<std::size_t>(stages));
  std::vector<std::thread> threads;
  for (std::int64_t s = 0; s < stages; ++s) {
    threads.emplace_back([&, s] {
      at::set_num_threads(1);
      testing::TestModel model = stage_model(c, whole, stages, s);
      Links links(network, s);
      model.model->ops().set_stages(&links);
      parts[static_cast<std::size_t>(s)] = train(model, micro, objective, c.mode);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::size_t seen = 0;
  for (const Outcome& part : parts) {
    EXPECT_EQ(part.norm, expected.norm);
    for (const auto& [name, gradients] : part.gradients) {
      ++seen;
      expect_bits(gradients, expected.gradients.at(name), name);
    }
  }
  EXPECT_GE(seen, expected.gradients.size());
  EXPECT_EQ(parts.back().numbers, expected.numbers);
  EXPECT_TRUE(parts.front().numbers.empty());
  ASSERT_EQ(parts.back().log_probs.size(), expected.log_probs.size());
  for (std::size_t i = 0; i < expected.log_probs.size(); ++i)
    expect_bits(parts.back().log_probs[i], expected.log_probs[i], "log-probabilities");
}

inline Case with_chunks(Case c, std::int64_t chunks) {
  c.shape.pipeline.chunks = chunks;
  return c;
}

inline Case with_zero_bubble(Case c) {
  c.shape.pipeline.zero_bubble = true;
  return c;
}

}  // namespace neap::ops

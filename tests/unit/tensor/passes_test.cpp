// Ranks that divide a model compute what one rank computes: hidden states, log-probabilities, gradients,
// scores and generated tokens of every architecture, in float64.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "bridge/no_autograd.h"
#include "join_parts.h"
#include "ops/transformer.h"
#include "spec/model/tensor_parallel.h"
#include "step/generation/sampling.h"
#include "step/units/gradient_norm.h"
#include "thread_ranks.h"
#include "unit/ops/passes.h"
#include "weights/unit_cuts.h"

namespace neap::ops {
namespace {

using at::Tensor;
using spec::Architecture;
using spec::Head;

constexpr double kTolerance = 1e-12;
constexpr std::int64_t kSequences = 3, kLength = 7;

std::filesystem::path folder() {
  return std::filesystem::path(NEAP_SOURCE_DIR) / "tests/golden/architectures";
}
Architecture architecture(const std::string& name, bool tied) {
  const std::string text = value_or_throw(read_file(folder() / (name + ".json"), 1_MiB));
  const Json file = value_or_throw(parse_json(text, name));
  Architecture a = value_or_throw(Architecture::from_json(file["config"], name));
  a.tie_word_embeddings = tied;
  return a;
}

std::vector<Tensor> tensors_of(const std::vector<spec::FlatUnit>& units) {
  std::vector<Tensor> out;
  out.reserve(units.size());
  for (const spec::FlatUnit& unit : units) out.push_back(at::zeros({unit.elements}, at::kDouble));
  return out;
}

// Weights that no symmetry hides anything in: norms near one, the rest small.
void fill(const std::vector<spec::FlatUnit>& units, const std::vector<Tensor>& flat) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const spec::Parameter& p : units[u].parameters) {
      const bool gain = p.shape.size() == 1 && p.part == spec::Part::kWeight;
      parameter_view(flat[u], p)
          .copy_(at::rand(p.shape, at::kDouble).sub_(0.5).mul_(0.4).add_(gain ? 1 : 0));
    }
  }
}

struct Data {
  Tensor tokens = at::randint(0, 40, {kSequences, kLength}, at::kLong);
  Tensor rows = at::randint(0, kSequences* kLength, {11}, at::kLong);
  Tensor targets = at::randint(0, 40, {11}, at::kLong);
  Tensor d_log_probs = at::rand({11}, at::kDouble);
  Tensor d_entropy = at::rand({11}, at::kDouble);
  Tensor uniforms = at::rand({kSequences}, at::kDouble).to(at::kFloat);
};

// What a model, or a rank's part of one, gives; of gradients the units.
struct Results {
  std::vector<std::pair<std::string, Tensor>> values;
  std::vector<Tensor> gradients, adapter_gradients;
  double norm = 0;
};

struct Case {
  Architecture whole;
  Head head = Head::kLanguageModel;
  spec::LoraShape lora{};
  bool recompute = false, divides_rows = false;
  Data data{};
  std::vector<Tensor> weights{}, adapters{};

  void make_weights() {
    const auto units = spec::flat_layout(whole, head);
    fill(units, weights = tensors_of(units));
    const auto more = spec::lora_layout(whole, head, lora);
    fill(more, adapters = tensors_of(more));
  }
};

step::TrainedUnit<Tensor> trained(const spec::FlatUnit& unit, const Tensor& gradients) {
  step::TrainedUnit<Tensor> out;
  out.unit = unit;
  out.gradients = gradients;
  return out;
}

void generate(Transformer& model, const Data& data, Results& out) {
  const Architecture& a = model.architecture();
  const Tensor flat = at::zeros({KvCache::elements(a, kSequences, kLength + 3)}, at::kDouble);
  const KvCache cache = KvCache::over(flat, a, kSequences, kLength + 3);
  const Tensor lengths = at::full({kSequences}, kLength, at::kLong);
  Tensor hidden = prefill(model, data.tokens, lengths, cache);
  step::SamplingOptions sampling;
  sampling.top_k = 9;
  sampling.top_p = 0.8;
  sampling.log_probs = true;
  for (std::int64_t i = 0; i < 3; ++i) {
    const Tensor logits = ops::logits(model, hidden);
    out.values.emplace_back("logits " + std::to_string(i), logits.clone());
    const step::Sampled<Tensor> next = step::sample(model.ops(), logits.clone(), sampling,
                                                    step::Draw<Tensor>{data.uniforms, {}, {}});
    out.values.emplace_back("tokens " + std::to_string(i), next.tokens.to(at::kDouble));
    out.values.emplace_back("sampled log-probabilities", next.log_probs);
    hidden = decode(model, next.tokens.view(-1), at::full({kSequences}, kLength + i, at::kLong),
                    cache, kLength + i + 1);
  }
}

// The first block without a tape, its MLP in chunks of a few rows.
Tensor in_chunks(Transformer& model, const Tensor& tokens) {
  const Architecture& a = model.architecture();
  const step::Weights<Tensor>& w = model.weights();
  const auto batch = step::of_one_length(tokens.view(-1), tokens.size(1));
  const step::Rows<Tensor> rows = step::rows_of_batch(model.ops(), w, batch);
  const auto attend = [&](step::Heads<Tensor> heads) {
    return model.ops().attention(std::move(heads), rows.spans, step::score_options(a, 0));
  };
  const Tensor x = step::block_inference(model.ops(), a, w.blocks[0],
                                         step::embed(model.ops(), w, batch.tokens, rows), rows,
                                         attend, 4 * a.tensor.ranks * a.intermediate_size);
  return step::tokens_of_all(model.ops(), rows, x);
}

void train(Transformer& model, const Case& setup, Results& out) {
  const Data& data = setup.data;
  spec::Checkpointing keep;
  if (setup.recompute)
    keep.blocks.assign(static_cast<std::size_t>(model.architecture().num_hidden_layers),
                       spec::BlockRetention::all(spec::Retention::kRecompute));
  auto tape = forward_train(model, data.tokens, keep);
  out.values.emplace_back("hidden", tape.hidden.clone());
  out.values.emplace_back("hidden without a tape", forward(model, data.tokens));
  out.values.emplace_back("in chunks", in_chunks(model, data.tokens));
  if (setup.head == Head::kScalar) {
    out.values.emplace_back("scores", scores(model, tape.hidden, data.rows));
    const Tensor d_hidden = scores_backward(model, tape.hidden, data.rows, data.d_log_probs);
    backward(model, std::move(tape), d_hidden);
    return;
  }
  LogProbOptions head;
  head.entropy = head.accuracy = true;
  head.chunk_elements = 200;  // several chunks
  const LogProbs values = log_probs(model, tape.hidden, data.rows, data.targets, head);
  out.values.emplace_back("log-probabilities", values.log_probs);
  out.values.emplace_back("entropies", values.entropy);
  out.values.emplace_back("right", values.right);
  Tensor d = log_probs_backward(model, tape.hidden, data.rows, data.targets, values,
                                data.d_log_probs, data.d_entropy, head);
  const auto more =
      cross_entropy(model, tape.hidden, data.rows, data.targets, data.d_log_probs, {});
  out.values.emplace_back("cross entropy", more.values.log_probs);
  backward(model, std::move(tape), d.add_(more.d_hidden));
}

Results run(const Case& setup, const Architecture& part, const std::vector<Tensor>& weights,
            const std::vector<Tensor>& adapters, parallel::Communicator* ranks) {
  const bridge::NoAutograd no_autograd;
  Results out;
  const std::vector<spec::FlatUnit> units = spec::flat_layout(part, setup.head);
  const std::vector<spec::FlatUnit> more = spec::lora_layout(part, setup.head, setup.lora);
  out.gradients = tensors_of(units);
  std::optional<Lora> lora;
  if (setup.lora.rank > 0) {
    out.adapter_gradients = tensors_of(more);
    lora = Lora{setup.lora, {adapters, out.adapter_gradients}};
  }
  Transformer model(part, setup.head, {weights, out.gradients}, lora, std::nullopt, {},
                    {.tensor = ranks});
  train(model, setup, out);
  std::vector<step::TrainedUnit<Tensor>> all;
  for (std::size_t u = 0; u < units.size(); ++u) all.push_back(trained(units[u], out.gradients[u]));
  for (std::size_t u = 0; u < more.size(); ++u)
    all.push_back(trained(more[u], out.adapter_gradients[u]));
  for (const auto& unit : all)
    step::sum_spread_gradients(model.ops(), unit.unit, unit.gradients, part.tensor);
  out.norm = step::joint_norm(model.ops(), step::piece_norms(model.ops(), all, &model.weights()));
  if (setup.head == Head::kLanguageModel) generate(model, setup.data, out);
  return out;
}

void expect_close(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double scale = 1 + b.abs().max().item<double>();
  EXPECT_LT((a - b).abs().max().item<double>(), kTolerance * scale) << what;
}

// A parameter in the whole model's gradients, and put together from those of all ranks; ranks that have the
// same part of one must have the same of it.
void expect_same_gradients(const weights::UnitCuts& cuts, const std::vector<Tensor>& whole,
                           const std::vector<std::vector<Tensor>>& parts, const std::string& what) {
  for (std::size_t u = 0; u < whole.size(); ++u) {
    const Tensor joined = at::zeros_like(whole[u]);
    for (std::size_t r = 0; r < parts.size(); ++r)
      testing::join_part(cuts, u, static_cast<std::int64_t>(r), parts[r][u], joined);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const Tensor again = at::zeros_like(parts[r][u]);
      cuts.take(u, static_cast<std::int64_t>(r), joined, again);
      EXPECT_TRUE(again.equal(parts[r][u])) << what << ", unit " << u << ", rank " << r;
    }
    for (const spec::Parameter& p : cuts.whole()[u].parameters)
      expect_close(parameter_view(joined, p), parameter_view(whole[u], p), what + ", " + p.name);
  }
}

void compare_rows(const Case& setup, int ranks, const std::string& what) {
  SCOPED_TRACE(what + " on " + std::to_string(ranks) + " ranks");
  const Results one = run(setup, setup.whole, setup.weights, setup.adapters, nullptr);
  const Architecture first = value_or_throw(spec::part_of(setup.whole, {ranks, 0}, "actor"));
  const weights::UnitCuts cuts(setup.whole, ranks, spec::flat_layout(setup.whole, setup.head),
                               spec::flat_layout(first, setup.head));
  const weights::UnitCuts adapter_cuts(setup.whole, ranks,
                                       spec::lora_layout(setup.whole, setup.head, setup.lora),
                                       spec::lora_layout(first, setup.head, setup.lora));
  std::vector<Results> all(static_cast<std::size_t>(ranks));
  testing::on_ranks(ranks, [&](parallel::Communicator& communicator) {
    const std::int64_t rank = communicator.rank();
    const spec::TensorShard shard{ranks, rank, setup.divides_rows};
    const Architecture part = value_or_throw(spec::part_of(setup.whole, shard, "actor"));
    const auto of_part = [&](const weights::UnitCuts& c, const std::vector<Tensor>& from,
                             const std::vector<spec::FlatUnit>& units) {
      std::vector<Tensor> out = tensors_of(units);
      for (std::size_t u = 0; u < units.size(); ++u) c.take(u, rank, from[u], out[u]);
      return out;
    };
    all[static_cast<std::size_t>(rank)] =
        run(setup, part, of_part(cuts, setup.weights, spec::flat_layout(part, setup.head)),
            of_part(adapter_cuts, setup.adapters, spec::lora_layout(part, setup.head, setup.lora)),
            &communicator);
  });
  std::vector<std::vector<Tensor>> gradients, adapter_gradients;
  for (const Results& r : all) {
    ASSERT_EQ(r.values.size(), one.values.size());
    for (std::size_t i = 0; i < one.values.size(); ++i)
      expect_close(r.values[i].second, one.values[i].second, one.values[i].first);
    EXPECT_NEAR(r.norm / one.norm, 1, 1e-6);  // norms of tiles are float32
    EXPECT_EQ(r.norm, all[0].norm);
    gradients.push_back(r.gradients);
    adapter_gradients.push_back(r.adapter_gradients);
  }
  expect_same_gradients(cuts, one.gradients, gradients, "gradients");
  if (setup.lora.rank > 0)
    expect_same_gradients(adapter_cuts, one.adapter_gradients, adapter_gradients, "adapters");
}

// Rows of hidden states whole on every rank, and divided.
void compare(Case setup, int ranks, const std::string& what) {
  for (const bool divided : {false, true}) {
    setup.divides_rows = divided;
    compare_rows(setup, ranks, what + (divided ? ", rows divided," : ""));
  }
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder()))
    if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
  std::sort(out.begin(), out.end());
  return out;
}

class EveryArchitecture : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    at::manual_seed(7);
  }
  static Case make_case(bool tied, Head head = Head::kLanguageModel, std::int64_t lora = 0) {
    Case out{.whole = architecture(GetParam(), tied), .head = head};
    if (lora > 0) out.lora = {.rank = lora, .targets = {std::string(spec::kAllLinear)}};
    out.make_weights();
    return out;
  }
  // Sizes that go with the architecture.
  static std::vector<int> sizes(const Architecture& a) {
    std::vector<int> out;
    for (const int ranks : {2, 4, 8})
      if (spec::part_of(a, {ranks, 0}, "actor").ok()) out.push_back(ranks);
    return out;
  }
};

TEST_P(EveryArchitecture, IsTheSameOnSeveralRanks) {
  for (const bool tied : {false, true}) {
    const Case s = make_case(tied);
    ASSERT_FALSE(sizes(s.whole).empty());
    for (const int ranks : sizes(s.whole)) compare(s, ranks, tied ? "tied" : "untied");
  }
}
TEST_P(EveryArchitecture, IsTheSameWhereNothingIsKept) {
  Case s = make_case(true);
  s.recompute = true;
  compare(s, 2, "recomputed");
}
TEST_P(EveryArchitecture, HasTheSameScores) {
  const Case s = make_case(false, Head::kScalar);
  for (const int ranks : sizes(s.whole)) compare(s, ranks, "scalar");
}
TEST_P(EveryArchitecture, HasTheSameAdapters) {
  const Case s = make_case(true, Head::kLanguageModel, 3);
  for (const int ranks : sizes(s.whole)) compare(s, ranks, "adapters");
}

INSTANTIATE_TEST_SUITE_P(All, EveryArchitecture, ::testing::ValuesIn(names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace neap::ops

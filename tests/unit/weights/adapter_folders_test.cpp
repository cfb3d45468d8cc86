// Adapters in folders: written, read back, and merged into their base.
#include "weights/merge.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "checkpoint_fixture.h"
#include "saved_models.h"
#include "unit/ops/passes.h"
#include "unit/ops/tiny_model.h"
#include "weights/checkpoint.h"
#include "weights/model_reader.h"
#include "weights/tensor_io.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using ops::testing::TestModel;
using ops::testing::tiny_gpt2;
using ops::testing::tiny_llama;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST_F(Checkpoint, AdaptersComeBackUnderPeftsNames) {
  const spec::LoraShape lora{2, {"q_proj", "down_proj"}};
  TestModel m(tiny_llama(), spec::Head::kScalar, lora, at::kFloat);
  save_adapter(folder_, m.shape, m.head, lora, m.adapter_weights, "base");
  const SafetensorsFile file = SafetensorsFile::open(folder_ / "adapter_model.safetensors");
  EXPECT_NE(file.find("base_model.model.model.layers.2.mlp.down_proj.lora_B.weight"), nullptr);
  EXPECT_THAT(value_or_throw(read_file(folder_ / "adapter_config.json")),
              HasSubstr("\"lora_alpha\": 16.0"));
  std::vector<Tensor> loaded;
  for (const auto& t : m.adapter_weights) loaded.push_back(at::zeros_like(t));
  AdapterReader(folder_, m.shape, m.head, lora).read(0, loaded);
  for (std::size_t u = 0; u < loaded.size(); ++u)
    EXPECT_TRUE(at::equal(loaded[u], m.adapter_weights[u]));
}

TEST_F(Checkpoint, AMergedAdapterGivesTheAdaptedModel) {
  for (const auto& [shape, targets] :
       {std::pair(tiny_llama(), std::vector<std::string>{"q_proj", "down_proj"}),
        std::pair(tiny_gpt2(), std::vector<std::string>{"c_attn", "c_proj"})}) {
    for (const spec::Head head : {spec::Head::kLanguageModel, spec::Head::kScalar}) {
      const spec::LoraShape lora{2, targets};
      TestModel m(shape, head, lora, at::kFloat);
      const fs::path folder = folder_ / std::to_string(static_cast<int>(head)) / targets[0];
      save_model(folder, m.shape, m.head, m.weights);
      save_adapter(folder, m.shape, m.head, lora, m.adapter_weights);
      TestModel merged(shape, head, std::nullopt, at::kFloat, 9);
      ModelReader(spec::ModelFiles{folder, {}}, shape, head).read(0, merged.weights);
      const Tensor batch = at::arange(10, at::kLong).view({2, 5});
      const Tensor wanted = forward(*m.model, batch);
      EXPECT_FALSE(at::allclose(forward(*merged.model, batch), wanted, 1e-3, 1e-3));
      ModelReader(folder, shape, head).read(0, merged.weights);
      const Tensor got = forward(*merged.model, batch);
      EXPECT_LT((got - wanted).abs().max().item<double>(),
                1e-4 * wanted.abs().max().item<double>());
      if (head == spec::Head::kScalar) {
        const Tensor rows = at::arange(10, at::kLong);
        const Tensor scores = ops::scores(*m.model, wanted, rows);
        const Tensor off = ops::scores(*merged.model, got, rows) - scores;
        EXPECT_LT(off.abs().max().item<double>(), 1e-4 * scores.abs().max().item<double>());
      }
    }
  }
}

TEST_F(Checkpoint, AdaptersThatCannotBeMergedAreRefusedOnOpening) {
  const spec::LoraShape lora{2, {"q_proj"}};
  TestModel m(tiny_llama(), spec::Head::kLanguageModel, lora, at::kFloat);
  save_model(folder_, m.shape, m.head, m.weights);
  save_adapter(folder_, m.shape, m.head, lora, m.adapter_weights);
  const fs::path config = folder_ / "adapter_config.json";
  const std::string text = value_or_throw(read_file(config));
  const auto is_refused = [&](const char* why) {
    EXPECT_THAT([&] { ModelReader(folder_, m.shape, m.head); },
                ThrowsMessage<Error>(HasSubstr(why)));
  };
  const auto refused = [&](const std::string& from, const std::string& to, const char* why) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    throw_if_error(write_file_atomic(config, changed));
    is_refused(why);
  };
  refused("LORA", "LOHA", "peft_type");
  refused("\"r\": 2", "\"r\": 3", "has shape [2, 24], the model's is [3, 24]");
  refused("\"r\": 2", "\"r\": \"x\"", "not an integer");
  refused("\"bias\"", "\"use_dora\": true, \"bias\"", "lora_magnitude_vector\", which");
  refused("\"bias\"", "\"init_lora_weights\": \"pissa\", \"bias\"",
          "changes the weights of the base");
  refused("\"bias\"", "\"modules_to_save\": [\"lm_head\"], \"bias\"", "lm_head.weight\", which");
  refused("self_attn.q_proj", "k_proj", "k_proj.lora_A.weight\", which");
  refused("self_attn.q_proj", "nothing", "chooses no linear layer of the model; it has ");
  throw_if_error(write_file_atomic(config, text));
  const fs::path weights = folder_ / "adapter_model.safetensors";
  const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.";
  save_tensors(weights, {{layer + "lora_A.weight", at::zeros({2, 24})}});
  is_refused("lora_B.weight\", which adapter_config.json asks for");
  save_adapter(folder_, m.shape, m.head, lora, m.adapter_weights);
  const SafetensorsFile file = SafetensorsFile::open(weights);
  NamedTensors more = {{"base_model.model.extra", at::zeros({2})}};
  for (const TensorEntry& entry : file.tensors())
    more.emplace_back(entry.name, read_float(file, entry));
  save_tensors(weights, more);
  is_refused("no place in this model");
  throw_if_error(write_file_atomic(weights, "short"));
  is_refused("adapter_model.safetensors");
  fs::remove(weights);
  is_refused("adapter_model.safetensors");
}

TEST_F(Checkpoint, AFolderWithAnAdapterAloneNamesItsBase) {
  const spec::LoraShape lora{2, {"all-linear"}};
  TestModel m(tiny_llama(), spec::Head::kLanguageModel, lora, at::kFloat);
  const fs::path base = folder_ / "base", adapter = folder_ / "adapter";
  save_model(base, m.shape, m.head, m.weights);
  const Tensor batch = at::arange(10, at::kLong).view({2, 5});
  const Tensor wanted = forward(*m.model, batch);
  for (const fs::path& named : {base, fs::path("../base")}) {
    save_adapter(adapter, m.shape, m.head, lora, m.adapter_weights, named.string());
    TestModel merged(m.shape, m.head, std::nullopt, at::kFloat, 9);
    ModelReader(adapter, m.shape, m.head).read(0, merged.weights);
    EXPECT_LT((forward(*merged.model, batch) - wanted).abs().max().item<double>(),
              1e-4 * wanted.abs().max().item<double>());
  }
  save_adapter(adapter, m.shape, m.head, lora, m.adapter_weights, "Qwen/Qwen2.5-1.5B");
  EXPECT_THAT([&] { ModelReader(adapter, m.shape, m.head); },
              ThrowsMessage<Error>(HasSubstr("\"Qwen/Qwen2.5-1.5B\" is not a folder")));
}

TEST_F(Checkpoint, AMergedFolderIsTheAdaptedModelWithoutItsAdapter) {
  const spec::LoraShape lora{2, {"q_proj", "up_proj"}};
  const spec::Architecture small =
      value_or_throw(spec::Architecture::from_json({{"model_type", "llama"},
                                                    {"vocab_size", 40},
                                                    {"hidden_size", 24},
                                                    {"intermediate_size", 32},
                                                    {"num_hidden_layers", 2},
                                                    {"num_attention_heads", 4},
                                                    {"num_key_value_heads", 2},
                                                    {"max_position_embeddings", 32}},
                                                   "small"));
  TestModel m(small, spec::Head::kLanguageModel, lora, at::kFloat);
  const fs::path from = folder_ / "from", to = folder_ / "to";
  save_model(from, m.shape, m.head, m.weights);
  EXPECT_THAT([&] { merge_adapter(value_or_throw(spec::find_model(from)), to); },
              ThrowsMessage<Error>(HasSubstr("has no adapter")));
  save_adapter(from, m.shape, m.head, lora, m.adapter_weights);
  merge_adapter(value_or_throw(spec::find_model(from)), to, {.max_shard = Bytes(8'000)});
  EXPECT_FALSE(fs::exists(to / "adapter_config.json"));
  EXPECT_TRUE(fs::exists(to / "model.safetensors.index.json"));
  const spec::Architecture shape = value_or_throw(spec::Architecture::from_folder(to));
  TestModel merged(shape, m.head, std::nullopt, at::kFloat, 9);
  ModelReader(to, shape, m.head).read(0, merged.weights);
  const Tensor batch = at::arange(10, at::kLong).view({2, 5});
  const Tensor wanted = forward(*m.model, batch);
  EXPECT_LT((forward(*merged.model, batch) - wanted).abs().max().item<double>(),
            1e-4 * wanted.abs().max().item<double>());
  EXPECT_THAT([&] { merge_adapter(value_or_throw(spec::find_model(from)), to); },
              ThrowsMessage<Error>(HasSubstr("holds a model already")));
}

}  // namespace
}  // namespace neap::weights

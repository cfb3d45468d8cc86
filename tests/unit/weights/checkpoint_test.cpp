#include "weights/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/status.h"
#include "checkpoint_fixture.h"
#include "saved_models.h"
#include "text/tokenizer/text_tokens.h"
#include "unit/ops/passes.h"
#include "unit/ops/tiny_model.h"
#include "unit/text/byte_tokenizer.h"
#include "weights/initialize.h"
#include "weights/model_reader.h"
#include "weights/tensor_io.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using ops::testing::TestModel;
using ops::testing::tiny_gpt2;
using ops::testing::tiny_llama;
using ops::testing::tiny_opt;
using ops::testing::tokens;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST_F(Checkpoint, ModelsComeBackThroughTheirFolder) {
  for (const spec::Architecture& shape :
       {tiny_llama(), tiny_gpt2(), tiny_opt(true), tiny_opt(false)}) {
    TestModel saved(shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
    TestModel loaded(shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat, 4);
    save_model(folder_, shape, saved.head, saved.weights, {.max_shard = Bytes(20'000)});
    EXPECT_TRUE(spec::has_weights(folder_));
    const ModelReader reader(folder_, shape, loaded.head);
    EXPECT_THAT(reader.missing(), ElementsAre());
    EXPECT_THAT(reader.unused(), ElementsAre());
    reader.read(0, loaded.weights);
    const Tensor batch = tokens(2, 5, 41);
    EXPECT_TRUE(at::equal(forward(*saved.model, batch), forward(*loaded.model, batch)));
    const auto shape_again = value_or_throw(spec::Architecture::from_folder(folder_));
    EXPECT_EQ(shape_again.to_json(), shape.to_json()) << shape.model_type;
  }
}

TEST_F(Checkpoint, ALanguageModelBecomesAScalarModelAndSaysWhatItLacks) {
  TestModel language(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  save_model(folder_, language.shape, language.head, language.weights);
  TestModel value(tiny_llama(), spec::Head::kScalar, std::nullopt, at::kFloat, 4);
  const Tensor score = value.model->parameters().back().weight.clone();
  const ModelReader reader(folder_, value.shape, value.head);
  EXPECT_THAT(reader.missing(), ElementsAre("score.weight"));
  EXPECT_THAT(reader.unused(), ElementsAre("lm_head.weight"));
  reader.read(0, value.weights);
  EXPECT_TRUE(at::equal(value.model->parameters().back().weight, score));
  const Tensor batch = tokens(2, 5, 41);
  EXPECT_TRUE(at::equal(forward(*language.model, batch), forward(*value.model, batch)));
}

TEST_F(Checkpoint, EndTokensComeFromTheGenerationConfigAndStay) {
  text::Tokenizer tokenizer = text::byte_tokenizer({"<a>", "<b>", "<c>"}, {});
  spec::Architecture shape = tiny_llama();
  EXPECT_THAT([&] { (void)text::text_tokens(folder_, shape, tokenizer); },
              ThrowsMessage<Error>(HasSubstr("nothing would end a text")));
  shape.eos_token_ids = {2, 0};
  text::TextTokens text = text::text_tokens(folder_, shape, tokenizer);
  EXPECT_THAT(text.ends, ElementsAre(2, 0));
  EXPECT_EQ(text.end, 2);
  EXPECT_EQ(text.pad, 2);
  EXPECT_TRUE(text.is_end(0));
  EXPECT_FALSE(text.is_end(1));
  // The tokenizer says which of them a text is written with.
  tokenizer.set_roles(std::nullopt, "<a>", "<c>");
  EXPECT_EQ(text::text_tokens(folder_, shape, tokenizer).end, 0);

  const fs::path origin = folder_ / "origin", out = folder_ / "out";
  fs::create_directories(origin);
  const std::string config = R"({"eos_token_id": [1, 0], "pad_token_id": 4, "top_k": 20})";
  std::ofstream(origin / "generation_config.json") << config;
  text = text::text_tokens(origin, shape, tokenizer);
  EXPECT_THAT(text.ends, ElementsAre(1, 0));
  EXPECT_EQ(text.pad, 4);
  TestModel m(shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat);
  SaveOptions options;
  options.origin = origin;
  save_model(out, shape, m.head, m.weights, options);
  EXPECT_EQ(value_or_throw(read_file(out / "generation_config.json", 1_MiB)), config);
  // The file that came along decides.
  EXPECT_THAT(value_or_throw(spec::Architecture::from_folder(out)).eos_token_ids,
              ElementsAre(1, 0));
  save_model(out, shape, m.head, m.weights);
  EXPECT_THAT(text::text_tokens(out, shape, tokenizer).ends, ElementsAre(2, 0));
  std::ofstream(origin / "generation_config.json") << R"({"eos_token_id": [1, "x"]})";
  EXPECT_THAT([&] { (void)text::text_tokens(origin, shape, tokenizer); },
              ThrowsMessage<Error>(HasSubstr("not a token id")));
  shape.eos_token_ids = {shape.vocab_size};
  EXPECT_THAT([&] { (void)text::text_tokens(folder_, shape, tokenizer); },
              ThrowsMessage<Error>(HasSubstr("not in the model's vocabulary")));
}

TEST_F(Checkpoint, AnotherDtypeIsConvertedOnTheWay) {
  TestModel wide(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  save_model(folder_, wide.shape, wide.head, wide.weights, {.dtype = at::kBFloat16});
  EXPECT_THAT(value_or_throw(read_file(folder_ / "config.json")),
              HasSubstr("\"torch_dtype\": \"bfloat16\""));
  TestModel narrow(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kBFloat16, 4);
  ModelReader(folder_, narrow.shape, narrow.head).read(0, narrow.weights);
  EXPECT_TRUE(at::equal(wide.weights[1].to(at::kBFloat16), narrow.weights[1]));
}

TEST_F(Checkpoint, FilesOfTheBaseModelWithoutPrefixAreRead) {
  TestModel m(tiny_gpt2(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  NamedTensors bare;
  for (const auto& p : m.model->parameters())
    bare.emplace_back(p.name.substr(std::string("transformer.").size()), p.weight);
  bare.emplace_back("h.0.attn.bias", at::ones({1, 1, 4, 4}, at::kByte));
  save_tensors(folder_ / "model.safetensors", bare);
  TestModel other(tiny_gpt2(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 4);
  const ModelReader reader(folder_, other.shape, other.head);
  EXPECT_THAT(reader.unused(), ElementsAre());
  reader.read(0, other.weights);
  EXPECT_TRUE(at::equal(m.weights[2], other.weights[2]));
}

TEST_F(Checkpoint, WrongFilesAreNamedWithTheirTensor) {
  TestModel m(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  NamedTensors some{{"model.embed_tokens.weight", at::zeros({41, 23})}};
  save_tensors(folder_ / "model.safetensors", some);
  EXPECT_THAT([&] { ModelReader(folder_, m.shape, m.head); },
              ThrowsMessage<Error>(::testing::AllOf(
                  HasSubstr("model.safetensors: tensor \"model.embed_tokens.weight\""),
                  HasSubstr("[41, 23]"), HasSubstr("[41, 24]"))));
  some[0].second = at::zeros({41, 24}, at::kLong);
  save_tensors(folder_ / "model.safetensors", some);
  EXPECT_THAT([&] { ModelReader(folder_, m.shape, m.head); },
              ThrowsMessage<Error>(HasSubstr("is I64, where F32 is wanted")));
  some[0].second = at::zeros({41, 24});
  save_tensors(folder_ / "model.safetensors", some);
  EXPECT_THAT([&] { ModelReader(folder_, m.shape, m.head); },
              ThrowsMessage<Error>(HasSubstr("has no tensor \"model.layers.0.")));
}

TEST_F(Checkpoint, NamedTensorsKeepTheirBitsAndMetadata) {
  const Tensor moments = at::arange(100, at::kFloat).sin_().to(at::kBFloat16);
  const Tensor step = at::full({}, 17, at::kLong);
  const fs::path file = folder_ / "optimizer.safetensors";
  save_tensors(file, {{"moments", moments}, {"step", step}}, {{"schema", "1"}});
  const Tensor moments_again = at::zeros_like(moments);
  const Tensor step_again = at::zeros_like(step);
  const SafetensorsFile opened = SafetensorsFile::open(file);
  load_tensors(opened, {{"moments", moments_again}, {"step", step_again}});
  EXPECT_EQ(opened.metadata().at("schema"), "1");
  EXPECT_TRUE(at::equal(moments, moments_again));
  EXPECT_TRUE(at::equal(step, step_again));
  EXPECT_THAT(
      [&] {
        load_tensors(opened, {{"moments", at::zeros({100})}});
      },
      ThrowsMessage<Error>(HasSubstr("is BF16, where F32 is wanted")));
}

TEST_F(Checkpoint, UnitsAreReadOnTheirOwn) {
  TestModel saved(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  save_model(folder_, saved.shape, saved.head, saved.weights);
  TestModel other(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 4);
  const Tensor untouched = other.weights[1].clone();
  const ModelReader reader(folder_, other.shape, other.head);
  reader.read(2, {other.weights[2], other.weights[3]});
  EXPECT_TRUE(at::equal(other.weights[1], untouched));
  EXPECT_TRUE(at::equal(other.weights[2], saved.weights[2]));
  EXPECT_TRUE(at::equal(other.weights[3], saved.weights[3]));
  EXPECT_THAT([&] { reader.read(saved.weights.size(), {other.weights[0]}); },
              ThrowsMessage<Error>(HasSubstr("flat units")));
}

TEST_F(Checkpoint, EveryPairOfFloatingDtypesIsConvertedAsLibtorchDoes) {
  const at::ScalarType types[] = {at::kFloat,  at::kBFloat16,      at::kHalf,
                                  at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  // Over one piece, and not a multiple of it.
  const Tensor values = at::randn({(4 << 20) + 4321}, at::kDouble);
  for (const at::ScalarType from : types) {
    const Tensor stored = values.to(from);
    save_tensors(folder_ / "t.safetensors", {{"t", stored}});
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "t.safetensors");
    for (const at::ScalarType to : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const Tensor read = at::zeros_like(stored, to);
      read_tensors({{&file, file.find("t"), read}});
      // libtorch goes from double to the halves in one step, this in two.
      const at::ScalarType middle = at::elementSize(to) == 2 ? at::kFloat : to;
      EXPECT_TRUE(at::equal(read, stored.to(middle).to(to)))
          << c10::toString(from) << " to " << c10::toString(to);
    }
  }
}

TEST_F(Checkpoint, EightBitFloatsAreScaledByBlockRowOrTensor) {
  TestModel m(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const auto check = [&](const std::string& end, const Tensor& scale, const Tensor& spread) {
    NamedTensors tensors;
    Tensor expected;
    for (const auto& p : m.model->parameters()) {
      const bool quantized = p.name == name;
      tensors.emplace_back(p.name, quantized ? p.weight.to(at::kFloat8_e4m3fn) : p.weight);
      if (quantized) expected = tensors.back().second.to(at::kFloat).mul(spread);
    }
    tensors.emplace_back(name + end, scale);
    save_tensors(folder_ / "model.safetensors", tensors);
    TestModel read(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 4);
    const ModelReader reader(folder_, m.shape, m.head);
    EXPECT_THAT(reader.unused(), ElementsAre());
    reader.read(0, read.weights);
    for (const auto& p : read.model->parameters()) {
      if (p.name == name) {
        EXPECT_TRUE(at::equal(p.weight, expected)) << end;
      }
    }
  };
  const std::int64_t rows = m.shape.hidden_size;
  const Tensor by_row = at::arange(1, rows + 1, at::kFloat).view({rows, 1});
  check("_scale", at::full({}, 0.5F), at::full({}, 0.5F));
  check("_scale", by_row, by_row);
  check("_scale_inv", at::full({1, 1}, 3.0F), at::full({}, 3.0F));
  EXPECT_THROW(check("_scale", at::ones({2, 2}), at::ones({1})), Error);
}

TEST_F(Checkpoint, RandomWeightsDoNotDependOnWhatIsFilledTogether) {
  TestModel all(tiny_llama(), spec::Head::kLanguageModel, std::nullopt, at::kFloat, 3);
  std::vector<Tensor> together, alone;
  for (const Tensor& unit : all.weights) {
    together.push_back(at::zeros_like(unit));
    alone.push_back(at::zeros_like(unit, at::kDouble));
  }
  initialize(all.shape, all.head, 0, together, 5);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (std::size_t u = alone.size(); u-- > 0;) initialize(all.shape, all.head, u, {alone[u]}, 5);
  at::set_num_threads(threads);
  for (std::size_t u = 0; u < alone.size(); ++u)
    EXPECT_TRUE(at::equal(together[u], alone[u].to(at::kFloat))) << u;
  EXPECT_FALSE(at::equal(together[1], together[2])) << "blocks alike";
}

}  // namespace
}  // namespace neap::weights

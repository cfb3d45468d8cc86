// neap generate: text from a checkpoint.
#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/random.h"
#include "cli/command.h"
#include "model/model_reader.h"
#include "model/text_tokens.h"
#include "model/tokenizer.h"
#include "model/transformer.h"
#include "rollout/generator.h"

namespace neap::cli {
namespace {
namespace fs = std::filesystem;

/// The folder with config.json: `path` itself, or the actor in a checkpoint or a run's output.
fs::path model_folder(const fs::path& path) {
  for (const char* inner : {"", "actor", "latest/actor"}) {
    std::error_code error;
    const fs::path folder = path / inner;
    if (fs::exists(folder / "config.json", error) && model::has_weights(folder)) return folder;
  }
  throw Error(ErrorCode::kNotFound,
              format("{} is no model, checkpoint or training output: there is no config.json with "
                     "weights in it, in actor/ or in latest/actor/",
                     path.string()));
}

class GenerateCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return std::string(kGenerate.name); }
  [[nodiscard]] std::string summary() const override { return std::string(kGenerate.summary); }
  void declare(CLI::App& app) override {
    app.add_option("CHECKPOINT", path_,
                   "model folder, checkpoint (global_step_N) or output folder of a run")
        ->required();
    app.add_option("--prompt", prompts_, "text to continue; may be repeated");
    app.add_flag("--stdin", stdin_, "one prompt a line from standard input");
    app.add_option("--max-new-tokens", max_new_tokens_, "longest text")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--temperature", sampling_.temperature, "0 takes the likeliest token")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    app.add_option("--top-p", sampling_.top_p, "mass of the likeliest tokens to draw from")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_option("--top-k", sampling_.top_k, "number of likeliest tokens to draw from; -1: all")
        ->check(CLI::Range(-1, 1 << 30))
        ->capture_default_str();
    app.add_option("--seed", seed_, "start of the random stream")->capture_default_str();
    app.add_option("--batch-size", batch_, "prompts decoded together")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    app.add_flag("--json", json_, "one JSON object a line: prompt, text, tokens, ended");
  }
  int run() override;

 private:
  void read_prompts();
  void print(const std::string& prompt, const rollout::Response& response,
             const std::string& text) const;
  std::string path_;
  std::vector<std::string> prompts_;
  bool stdin_ = false, json_ = false;
  std::int64_t max_new_tokens_ = 64, batch_ = 16;
  std::uint64_t seed_ = 1;
  step::SamplingOptions sampling_;
};

void GenerateCommand::read_prompts() {
  std::string line;
  while (stdin_ && std::getline(std::cin, line)) {
    if (!line.empty()) prompts_.push_back(line);
  }
  if (prompts_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "There is no prompt: give --prompt TEXT or --stdin");
  }
}

void GenerateCommand::print(const std::string& prompt, const rollout::Response& response,
                            const std::string& text) const {
  std::string line = prompt + text;
  if (json_) {
    Json out = Json::object();
    out["prompt"] = prompt;
    out["text"] = text;
    out["tokens"] = response.tokens;
    out["ended"] = response.ended;
    line = out.dump();
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
}

int GenerateCommand::run() {
  read_prompts();
  const fs::path folder = model_folder(path_);
  const spec::Architecture shape = value_or_throw(spec::Architecture::from_folder(folder));
  const model::Tokenizer tokenizer = model::Tokenizer::from_folder(folder);
  std::vector<at::Tensor> flat;
  for (const spec::FlatUnit& unit : spec::flat_layout(shape, spec::Head::kLanguageModel)) {
    flat.push_back(at::zeros({unit.elements}, at::TensorOptions().dtype(at::kFloat)));
  }
  model::ModelReader(folder, shape, spec::Head::kLanguageModel).read(0, flat);
  model::Transformer network(shape, spec::Head::kLanguageModel, {flat, {}});

  rollout::GenerateOptions options;
  options.sampling = sampling_;
  options.max_new_tokens = max_new_tokens_;
  const model::TextTokens text = model::text_tokens(folder, shape, tokenizer);
  options.eos_token_ids = text.ends;
  options.pad_token_id = text.pad;
  std::vector<rollout::Prompt> requests;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    requests.push_back({tokenizer.encode_prompt(prompts_[i]), random_key({seed_, i})});
    options.prompt_width =
        std::max(options.prompt_width, static_cast<std::int64_t>(requests.back().tokens.size()));
  }
  const std::int64_t width = options.prompt_width + max_new_tokens_;
  if (width > shape.longest_sequence()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("The longest prompt has {} tokens; with --max-new-tokens {} that is over "
                       "the model's {} positions",
                       options.prompt_width, max_new_tokens_, shape.longest_sequence()));
  }
  const std::int64_t batch = std::min(batch_, static_cast<std::int64_t>(requests.size()));
  const at::Tensor cells = at::zeros({model::KvCache::elements(shape, batch, width)},
                                     at::TensorOptions().dtype(at::kFloat));
  model::KvCache cache = model::KvCache::over(cells, shape, batch, width);
  const auto responses = rollout::generate(network, cache, requests, options);
  for (std::size_t i = 0; i < responses.size(); ++i) {
    print(prompts_[i], responses[i], tokenizer.decode(responses[i].tokens));
  }
  return 0;
}

}  // namespace
NEAP_COMMAND(GenerateCommand)
}  // namespace neap::cli

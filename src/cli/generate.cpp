// neap generate: text from a checkpoint.
#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/random.h"
#include "chat/conversation.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "data/fields.h"
#include "data/row_source.h"
#include "model/model_reader.h"
#include "model/text_tokens.h"
#include "model/tokenizer.h"
#include "model/transformer.h"
#include "rollout/generator.h"
#include "rollout/stop_strings.h"

namespace neap::cli {
namespace {

/// A text, or a conversation for the chat template.
struct Request {
  Json prompt;
  std::vector<model::TokenId> tokens;
};

class GenerateCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return std::string(kGenerate.name); }
  [[nodiscard]] std::string summary() const override { return std::string(kGenerate.summary); }
  void declare(CLI::App& app) override {
    app.add_option(
           "CHECKPOINT", path_,
           "model folder, PEFT adapter, checkpoint (global_step_N) or output folder of a run")
        ->required();
    app.add_option("--adapter", adapter_, kAdapterHelp);
    app.add_option("--prompt", texts_, "text to continue; may be repeated");
    app.add_flag("--stdin", stdin_, "one prompt a line from standard input");
    app.add_option(
        "--input", input_,
        "JSON lines whose \"prompt\" is a text, or a list of messages for the chat template");
    app.add_flag("--chat", chat_, "texts are a user's message, put into the chat template");
    app.add_option("--max-new-tokens", max_new_tokens_, "longest text")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--n", n_, "texts for each prompt")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    declare_sampling(app);
    app.add_option("--seed", seed_, "start of the random stream")->capture_default_str();
    app.add_option("--batch-size", batch_, "texts decoded together")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    app.add_flag("--json", json_,
                 "one JSON object a line: prompt, sample, text, tokens, log_probs, ended");
  }
  int run() override;

 private:
  void declare_sampling(CLI::App& app);
  [[nodiscard]] std::vector<Json> read_prompts() const;
  [[nodiscard]] std::vector<Request> encode(const model::Tokenizer& tokenizer) const;
  [[nodiscard]] std::vector<rollout::Response> respond(const spec::ModelFiles& files,
                                                       const spec::Architecture& shape,
                                                       const model::Tokenizer& tokenizer,
                                                       const std::vector<Request>& requests);
  void print(const Request& request, std::int64_t sample, const rollout::Response& response,
             const std::string& text) const;
  std::string path_, adapter_, input_;
  std::vector<std::string> texts_, stop_;
  bool stdin_ = false, json_ = false, chat_ = false;
  std::int64_t max_new_tokens_ = 64, batch_ = 16, n_ = 1;
  std::uint64_t seed_ = 1;
  step::SamplingOptions sampling_;
};

void GenerateCommand::declare_sampling(CLI::App& app) {
  const auto number = [&](const char* name, double& value, CLI::Range range, const char* what) {
    app.add_option(name, value, what)->check(range)->capture_default_str();
  };
  number("--temperature", sampling_.temperature, CLI::Range(0.0, 100.0),
         "0 takes the likeliest token");
  number("--top-p", sampling_.top_p, CLI::Range(0.0, 1.0),
         "mass of the likeliest tokens to draw from");
  app.add_option("--top-k", sampling_.top_k, "number of likeliest tokens to draw from; -1: all")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  number("--min-p", sampling_.min_p, CLI::Range(0.0, 1.0),
         "drops tokens under this share of the likeliest one's probability");
  number("--repetition-penalty", sampling_.repetition_penalty, CLI::Range(1e-6, 100.0),
         "divides positive logits of tokens that were there, multiplies negative ones; 1: off");
  number("--presence-penalty", sampling_.presence_penalty, CLI::Range(-100.0, 100.0),
         "subtracted from logits of tokens in the text so far");
  number("--frequency-penalty", sampling_.frequency_penalty, CLI::Range(-100.0, 100.0),
         "the same, for each time that the token is there");
  app.add_option("--stop", stop_, "a text that ends the answer; may be repeated");
}

std::vector<Json> GenerateCommand::read_prompts() const {
  std::vector<Json> prompts;
  const auto add = [&](const std::string& text) {
    prompts.push_back(chat_ ? Json::array({Json{{"role", "user"}, {"content", text}}})
                            : Json(text));
  };
  for (const std::string& text : texts_) add(text);
  std::string line;
  while (stdin_ && std::getline(std::cin, line)) {
    if (!line.empty()) add(line);
  }
  if (!input_.empty()) {
    const auto source = value_or_throw(data::RowSource::open(input_));
    for (data::RawRow raw; value_or_throw(source->next(raw));) {
      const std::string where = source->where(raw.number);
      const Json row = value_or_throw(data::parse_row(raw.text, where));
      const Json prompt = value_or_throw(data::text_field(row, "prompt", where));
      if (prompt.is_string())
        add(prompt.get<std::string>());
      else
        prompts.push_back(prompt);
    }
  }
  if (prompts.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "There is no prompt: give --prompt TEXT, --stdin or --input FILE");
  return prompts;
}

std::vector<Request> GenerateCommand::encode(const model::Tokenizer& tokenizer) const {
  std::optional<chat::Conversations> conversations;
  std::vector<Request> requests;
  for (Json& prompt : read_prompts()) {
    Request request{std::move(prompt), {}};
    if (request.prompt.is_string()) {
      request.tokens = tokenizer.encode_prompt(request.prompt.get<std::string>());
    } else {
      if (!conversations) conversations = value_or_throw(chat::Conversations::make(tokenizer));
      request.tokens = value_or_throw(conversations->prompt(request.prompt));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void GenerateCommand::print(const Request& request, std::int64_t sample,
                            const rollout::Response& response, const std::string& text) const {
  std::string line = request.prompt.is_string() ? request.prompt.get<std::string>() + text : text;
  if (json_) {
    Json out = Json::object();
    out["prompt"] = request.prompt;
    out["sample"] = sample;
    out["text"] = text;
    out["tokens"] = response.tokens;
    out["log_probs"] = response.log_probs;
    out["ended"] = response.ended;
    line = out.dump();
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
}

std::vector<rollout::Response> GenerateCommand::respond(const spec::ModelFiles& files,
                                                        const spec::Architecture& shape,
                                                        const model::Tokenizer& tokenizer,
                                                        const std::vector<Request>& requests) {
  std::vector<at::Tensor> flat;
  for (const spec::FlatUnit& unit : spec::flat_layout(shape, spec::Head::kLanguageModel))
    flat.push_back(at::zeros({unit.elements}, at::TensorOptions().dtype(at::kFloat)));
  model::ModelReader(files, shape, spec::Head::kLanguageModel).read(0, flat);
  model::Transformer network(shape, spec::Head::kLanguageModel, {flat, {}});

  rollout::GenerateOptions options;
  options.sampling = sampling_;
  options.sampling.log_probs = json_;
  options.max_new_tokens = max_new_tokens_;
  const model::TextTokens text = model::text_tokens(files.base, shape, tokenizer);
  options.eos_token_ids = text.ends;
  options.pad_token_id = text.pad;
  rollout::StopStrings stops(tokenizer, stop_);
  options.stops = [&](std::size_t response, std::int64_t token) {
    return stops.push(response, token);
  };
  std::vector<rollout::Prompt> prompts;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::int64_t k = 0; k < n_; ++k)
      prompts.push_back(
          {requests[i].tokens, random_key({seed_, i, static_cast<std::uint64_t>(k)})});
    options.prompt_width =
        std::max(options.prompt_width, static_cast<std::int64_t>(requests[i].tokens.size()));
  }
  const std::int64_t width = options.prompt_width + max_new_tokens_;
  if (width > shape.longest_sequence()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("The longest prompt has {} tokens; with --max-new-tokens {} that is over "
                       "the model's {} positions",
                       options.prompt_width, max_new_tokens_, shape.longest_sequence()));
  }
  const std::int64_t batch = std::min(batch_, static_cast<std::int64_t>(prompts.size()));
  const at::Tensor cells = at::zeros({model::KvCache::elements(shape, batch, width)},
                                     at::TensorOptions().dtype(at::kFloat));
  model::KvCache cache = model::KvCache::over(cells, shape, batch, width);
  Progress progress("generate", prompts.size(), "texts");
  return rollout::generate(network, cache, prompts, options, [&](std::size_t ended) {
    progress.update(ended);
    return true;
  });
}

int GenerateCommand::run() {
  const spec::ModelFiles files = model_files(path_, adapter_);
  const spec::Architecture shape = value_or_throw(spec::Architecture::from_folder(files.base));
  const model::Tokenizer tokenizer = model::Tokenizer::from_folder(files.tokenizer());
  const std::vector<Request> requests = encode(tokenizer);
  const std::vector<rollout::Response> responses = respond(files, shape, tokenizer, requests);
  for (std::size_t i = 0; i < responses.size(); ++i) {
    const auto n = static_cast<std::size_t>(n_);
    print(requests[i / n], static_cast<std::int64_t>(i % n), responses[i],
          tokenizer.decode(responses[i].tokens));
  }
  return 0;
}

}  // namespace
NEAP_COMMAND(GenerateCommand)
}  // namespace neap::cli

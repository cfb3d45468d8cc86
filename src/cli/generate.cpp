// neap generate: text from a checkpoint.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/random.h"
#include "bridge/run_device.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "cli/prompt_source.h"
#include "model/model_reader.h"
#include "model/text_tokens.h"
#include "model/tokenizer.h"
#include "model/transformer.h"
#include "rollout/generator.h"
#include "rollout/stop_strings.h"

namespace neap::cli {
namespace {

// Prompts are read in parts, so that a file of any size takes the memory of one.
constexpr std::int64_t kTextsPerPart = 1024, kBatchesPerPart = 16;
constexpr Bytes kMostPartBytes = 64_MiB;  // of prompts

struct GenerateSettings {
  PromptOptions prompts;
  std::vector<std::string> stop;
  bool json = false;
  std::int64_t max_new_tokens = 64, batch = 16, n = 1, max_num_batched_tokens = 8192;
  std::uint64_t seed = 1, skip = 0;
  step::SamplingOptions sampling;
  spec::Job job;  // of which only the device counts
};

// CLI11 takes "-1" for the largest unsigned number.
std::string not_negative(const std::string& text) {
  return text.starts_with('-') ? format("{} is less than 0", text) : std::string();
}

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
    app.add_option("--prompt", settings_.prompts.texts, "text to continue; may be repeated");
    app.add_flag("--stdin", stdin_,
                 "one prompt a line from standard input; empty lines are skipped");
    app.add_option("--input", settings_.prompts.file,
                   "rows (JSONL, plain or packed, or Parquet) whose \"prompt\" is a text, or a "
                   "list of messages "
                   "for the chat template");
    app.add_flag("--chat", settings_.prompts.chat,
                 "texts are a user's message, put into the chat template");
    app.add_option("--max-new-tokens", settings_.max_new_tokens, "longest text")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--n", settings_.n, "texts for each prompt")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    declare_sampling(app);
    app.add_option("--seed", settings_.seed, "start of the random stream")
        ->check(not_negative)
        ->capture_default_str();
    app.add_option("--skip", settings_.skip, "texts that are not written again: lines of --json")
        ->check(not_negative)
        ->capture_default_str();
    app.add_option("--batch-size", settings_.batch, "texts decoded together")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    app.add_option("--max-num-batched-tokens", settings_.max_num_batched_tokens,
                   "tokens of prompts that one pass prefills")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    app.add_option("--device", settings_.job.device.kind, "auto, cuda or host")
        ->check(CLI::IsMember({"auto", "cuda", "host"}))
        ->capture_default_str();
    app.add_option("--dtype", settings_.job.device.dtype,
                   "of weights and cache; auto: bfloat16 on cuda, float32 on the host")
        ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
        ->capture_default_str();
    app.add_flag("--json", settings_.json,
                 "one JSON object a line: prompt, sample, text, tokens, log_probs, and "
                 "finish_reason: \"stop\", or \"length\" where --max-new-tokens cut it");
    app.footer(
        "Texts are printed in the order of the prompts, each as soon as it and those before it "
        "have "
        "ended. A text\ndepends on its prompt, its place and --seed: after an interrupted run, "
        "--skip goes on where its output ends.");
  }
  int run() override;

 private:
  void declare_sampling(CLI::App& app);
  std::string path_, adapter_;
  bool stdin_ = false;
  GenerateSettings settings_;
};

void GenerateCommand::declare_sampling(CLI::App& app) {
  const auto number = [&](const char* name, double& value, const CLI::Range& range,
                          const char* what) {
    app.add_option(name, value, what)->check(range)->capture_default_str();
  };
  number("--temperature", settings_.sampling.temperature, CLI::Range(0.0, 100.0),
         "0 takes the likeliest token");
  number("--top-p", settings_.sampling.top_p, CLI::Range(0.0, 1.0),
         "mass of the likeliest tokens to draw from");
  app.add_option("--top-k", settings_.sampling.top_k,
                 "number of likeliest tokens to draw from; -1: all")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  number("--min-p", settings_.sampling.min_p, CLI::Range(0.0, 1.0),
         "drops tokens under this share of the likeliest one's probability");
  number("--repetition-penalty", settings_.sampling.repetition_penalty, CLI::Range(1e-6, 100.0),
         "divides positive logits of tokens that were there, multiplies negative ones; 1: off");
  number("--presence-penalty", settings_.sampling.presence_penalty, CLI::Range(-100.0, 100.0),
         "subtracted from logits of tokens in the text so far");
  number("--frequency-penalty", settings_.sampling.frequency_penalty, CLI::Range(-100.0, 100.0),
         "the same, for each time that the token is there");
  app.add_option("--stop", settings_.stop, "a text that ends the answer; may be repeated");
}

// The checkpoint on its device, with a cache that grows to what a part needs.
class Network {
 public:
  Network(const spec::ModelFiles& files, const spec::Architecture& shape,
          const bridge::RunDevice& device);

  [[nodiscard]] model::Transformer& transformer() { return *transformer_; }
  [[nodiscard]] model::KvCache& cache(std::int64_t batch, std::int64_t tokens);

 private:
  template <class Make>
  auto on_device(const char* what, Bytes bytes, const Make& make) const;

  spec::Architecture shape_;
  at::TensorOptions options_;
  std::optional<model::Transformer> transformer_;
  at::Tensor cells_;  // of the largest cache so far
  model::KvCache cache_;
};

template <class Make>
auto Network::on_device(const char* what, Bytes bytes, const Make& make) const {
  try {
    return make();
  } catch (const c10::OutOfMemoryError&) {
    throw Error(ErrorCode::kOutOfDeviceMemory,
                format("{} of {} do not fit into the device's memory", what, bytes));
  }
}

Network::Network(const spec::ModelFiles& files, const spec::Architecture& shape,
                 const bridge::RunDevice& device)
    : shape_(shape), options_(at::TensorOptions().device(device.torch).dtype(device.dtype)) {
  const std::vector<spec::FlatUnit> units = spec::flat_layout(shape, spec::Head::kLanguageModel);
  std::int64_t elements = 0;
  for (const spec::FlatUnit& unit : units) elements += unit.elements;
  const auto width = static_cast<std::int64_t>(c10::elementSize(device.dtype));
  std::vector<at::Tensor> flat;
  on_device("Weights", Bytes(elements * width), [&] {
    for (const spec::FlatUnit& unit : units) flat.push_back(at::zeros({unit.elements}, options_));
  });
  model::ModelReader(files, shape, spec::Head::kLanguageModel).read(0, flat);
  transformer_.emplace(shape, spec::Head::kLanguageModel, model::FlatTensors{flat, {}});
}

model::KvCache& Network::cache(std::int64_t batch, std::int64_t tokens) {
  const std::int64_t elements = model::KvCache::elements(shape_, batch, tokens);
  cache_ = {};
  if (!cells_.defined() || cells_.numel() < elements) {
    cells_ = at::Tensor();
    const Bytes bytes(elements * static_cast<std::int64_t>(options_.dtype().itemsize()));
    cells_ = on_device("Keys and values", bytes, [&] { return at::zeros({elements}, options_); });
  }
  cache_ = model::KvCache::over(cells_, shape_, batch, tokens);
  return cache_;
}

// Texts in the order of the prompts, whichever end first.
class Output {
 public:
  /// The first text is number `first`.
  Output(const model::Tokenizer& tokenizer, bool json, std::uint64_t first)
      : tokenizer_(tokenizer), json_(json), next_(first) {}

  /// Writes what has ended, up to the first text that has not.
  void add(std::uint64_t text, std::string line) {
    ended_.emplace(text, std::move(line));
    std::string lines;
    while (!ended_.empty() && ended_.begin()->first == next_) {
      lines += ended_.begin()->second;
      ended_.erase(ended_.begin());
      ++next_;
    }
    throw_if_error(write_output(lines));
  }
  [[nodiscard]] std::string line(const Request& request, std::uint64_t sample,
                                 const rollout::Response& response);
  [[nodiscard]] std::uint64_t truncated() const { return truncated_; }

 private:
  const model::Tokenizer& tokenizer_;
  bool json_;
  std::uint64_t next_, truncated_ = 0;
  std::map<std::uint64_t, std::string> ended_;
};

std::string Output::line(const Request& request, std::uint64_t sample,
                         const rollout::Response& response) {
  const std::string text = tokenizer_.decode(response.tokens);
  if (!response.ended) ++truncated_;
  if (!json_) {
    const bool starts = request.prompt.is_string();
    return (starts ? request.prompt.get<std::string>() + text : text) + "\n";
  }
  Json out = Json::object();
  out["prompt"] = request.prompt;
  out["sample"] = sample;
  out["text"] = text;
  out["tokens"] = response.tokens;
  out["log_probs"] = response.log_probs;
  out["finish_reason"] = response.ended ? "stop" : "length";
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Some of the prompts.
struct Part {
  std::vector<Request> requests;
  std::uint64_t first = 0;  // prompts before them
  bool last = false;
};

class Generate {
 public:
  Generate(const GenerateSettings& settings, spec::ModelFiles files);
  void run();

 private:
  [[nodiscard]] Part read_part();
  void check(const Request& request) const;
  void respond(Network& network, const Part& part, Progress& progress);
  void respond(Network& network, const Part& part, const std::vector<std::uint64_t>& texts,
               Progress& progress);

  const GenerateSettings& settings_;
  spec::ModelFiles files_;
  spec::Architecture shape_;
  model::Tokenizer tokenizer_;
  model::TextTokens text_;
  PromptSource source_;
  Output output_;
  std::uint64_t prompts_ = 0;  // that were read
};

Generate::Generate(const GenerateSettings& settings, spec::ModelFiles files)
    : settings_(settings),
      files_(std::move(files)),
      shape_(value_or_throw(spec::Architecture::from_folder(files_.base))),
      tokenizer_(model::Tokenizer::from_folder(files_.tokenizer())),
      text_(model::text_tokens(files_.base, shape_, tokenizer_)),
      source_(settings.prompts, tokenizer_),
      output_(tokenizer_, settings.json, settings.skip) {}

void Generate::check(const Request& request) const {
  const std::int64_t tokens = std::ssize(request.tokens);
  if (tokens + settings_.max_new_tokens <= shape_.longest_sequence()) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: the prompt has {} tokens; with --max-new-tokens {} that is over the "
                     "model's {} positions",
                     request.where, tokens, settings_.max_new_tokens, shape_.longest_sequence()));
}

Part Generate::read_part() {
  Part part;
  const std::int64_t most = std::max(kTextsPerPart, kBatchesPerPart * settings_.batch);
  Bytes bytes;
  const auto n = static_cast<std::uint64_t>(settings_.n);
  while (std::ssize(part.requests) * settings_.n < most && bytes < kMostPartBytes) {
    Request request;
    part.last = !source_.next(request);
    if (part.last) break;
    check(request);
    if (++prompts_ * n <= settings_.skip) continue;
    if (part.requests.empty()) part.first = prompts_ - 1;
    bytes += Bytes(request.tokens.size() * sizeof(model::TokenId));
    part.requests.push_back(std::move(request));
  }
  return part;
}

// Texts whose lengths turn positions differently are generated apart, so that none depends on the others.
void Generate::respond(Network& network, const Part& part, Progress& progress) {
  const auto n = static_cast<std::uint64_t>(settings_.n);
  const std::uint64_t begin = std::max(part.first * n, settings_.skip);
  std::map<std::int64_t, std::vector<std::uint64_t>> alike;
  for (std::uint64_t text = begin; text < (part.first + part.requests.size()) * n; ++text) {
    const std::int64_t length =
        std::ssize(part.requests[text / n - part.first].tokens) + settings_.max_new_tokens;
    alike[std::max(spec::least_alike(shape_.rotary, length),
                   spec::least_alike(shape_.sliding_rotary, length))]
        .push_back(text);
  }
  for (const auto& [length, texts] : alike) respond(network, part, texts, progress);
}

void Generate::respond(Network& network, const Part& part, const std::vector<std::uint64_t>& texts,
                       Progress& progress) {
  const auto n = static_cast<std::uint64_t>(settings_.n);
  rollout::GenerateOptions options;
  options.sampling = settings_.sampling;
  options.sampling.log_probs = settings_.json;
  options.max_new_tokens = settings_.max_new_tokens;
  options.eos_token_ids = text_.ends;
  options.pad_token_id = text_.pad;
  std::vector<rollout::Prompt> prompts;
  for (const std::uint64_t text : texts) {
    prompts.push_back({part.requests[text / n - part.first].tokens,
                       random_key({settings_.seed, text / n, text % n})});
    options.prompt_width = std::max(options.prompt_width, std::ssize(prompts.back().tokens));
  }
  const std::int64_t batch = std::min(settings_.batch, std::ssize(prompts));
  options.prefill =
      spec::prefill_shape(batch, options.prompt_width, settings_.max_num_batched_tokens);
  rollout::StopStrings stops(tokenizer_, settings_.stop);
  options.stops = [&](std::size_t response, std::int64_t token) {
    return stops.push(response, token);
  };
  options.on_response = [&](std::size_t response, const rollout::Response& r) {
    const std::uint64_t text = texts[response];
    output_.add(text, output_.line(part.requests[text / n - part.first], text % n, r));
    progress.add(1);
  };
  (void)rollout::generate(network.transformer(),
                          network.cache(batch, options.prompt_width + options.max_new_tokens),
                          prompts, options);
}

void Generate::run() {
  Part part = read_part();
  if (prompts_ == 0)
    throw Error(ErrorCode::kInvalidArgument,
                source_.empty_lines() > 0
                    ? "There is no prompt: all lines of standard input are empty"
                    : "There is no prompt: give --prompt TEXT, --stdin or --input FILE");
  if (part.requests.empty()) return;
  const spec::DeviceConfig& device = settings_.job.device;
  Network network(files_, shape_,
                  bridge::open_device(settings_.job, bridge::choose_run_device(device)));
  const std::uint64_t texts = prompts_ * static_cast<std::uint64_t>(settings_.n);
  Progress progress("generate", part.last ? texts - settings_.skip : 0, "texts");
  while (!part.requests.empty()) {
    respond(network, part, progress);
    if (part.last) break;
    part = read_part();
  }
  progress.finish();
  if (source_.empty_lines() > 0)
    log::warn(format("{} empty lines of standard input were skipped", source_.empty_lines()));
  if (output_.truncated() > 0)
    log::info(format("{} texts were cut at --max-new-tokens {}", output_.truncated(),
                     settings_.max_new_tokens));
}

int GenerateCommand::run() {
  if (stdin_) settings_.prompts.lines = &std::cin;
  Generate(settings_, model_files(path_, adapter_)).run();
  return 0;
}

}  // namespace
NEAP_COMMAND(GenerateCommand)
}  // namespace neap::cli

// neap generate: text from a checkpoint.
#include <unistd.h>

#include <algorithm>
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
#include "cli/chat_session.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "cli/prompt_source.h"
#include "cli/sampling_settings.h"
#include "cli/text_model.h"
#include "cli/trainer_commands.h"
#include "rollout/stop_strings.h"

namespace neap::cli {
namespace {

// Prompts are read in parts, so that a file of any size needs the memory of one part.
constexpr std::int64_t kTextsPerPart = 1024, kBatchesPerPart = 16;
constexpr Bytes kMostPartBytes = 64_MiB;  // of prompts

// Default limits of a text and of a reply.
constexpr std::int64_t kNewTokens = 64, kReplyTokens = 1024;

struct GenerateSettings {
  PromptOptions prompts;
  SamplingFlags sampling;
  bool json = false;
  std::int64_t batch = 16, n = 1, max_num_batched_tokens = 8192, max_total_tokens = 0;
  std::uint64_t seed = 1, skip = 0;
  spec::DeviceConfig device;
};

// CLI11 parses "-1" as the largest unsigned number.
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
    app.add_option("--adapter", adapter_, kAdapterHelp)->type_name("FOLDER");
    app.add_option("--prompt", settings_.prompts.texts, "text to continue; may be repeated");
    app.add_flag("--stdin", stdin_,
                 "one prompt per line of standard input; empty lines are skipped");
    app.add_option(
           "--input", settings_.prompts.file,
           "rows (JSONL, plain or compressed, or Parquet) whose \"prompt\" is a text, or a list "
           "of messages for the chat template")
        ->type_name("FILE");
    app.add_flag(
        "--chat", settings_.prompts.chat,
        "prompts are user messages for the chat template; without a prompt, a conversation: each "
        "line of standard input is a message");
    app.add_option(
           "--max-new-tokens", settings_.sampling.max_new_tokens,
           "maximum length; default: the checkpoint's max_new_tokens or max_length, else 64")
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("--n", settings_.n, "texts for each prompt")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    settings_.sampling.declare(app);
    app.add_option("--seed", settings_.seed, "seed of the random numbers")
        ->check(not_negative)
        ->capture_default_str();
    app.add_option("--skip", settings_.skip,
                   "texts to leave out, such as the lines of an earlier --json output")
        ->check(not_negative)
        ->capture_default_str();
    app.add_option("--batch-size", settings_.batch, "texts decoded together")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    app.add_option("--max-num-batched-tokens", settings_.max_num_batched_tokens,
                   "prompt tokens that one pass prefills")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    app.add_option("--max-total-tokens", settings_.max_total_tokens,
                   "tokens of the KV cache, in pages of 64; 0: room for --batch-size of the "
                   "longest texts")
        ->check(CLI::Range(0, 1 << 30))
        ->capture_default_str();
    app.add_option("--device", settings_.device.kind, "where to compute")
        ->check(CLI::IsMember({"auto", "cuda", "cpu"}))
        ->capture_default_str();
    app.add_option("--dtype", settings_.device.dtype,
                   "type of weights and KV cache; auto: bfloat16 on cuda, float32 on the CPU")
        ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
        ->capture_default_str();
    app.add_flag(
        "--json", settings_.json,
        "one JSON object per text: prompt, sample, text, tokens, log_probs, finish_reason");
    app.footer(
        "Texts are printed in the order of the prompts. A text depends only on its prompt, the "
        "prompt's number\nand --seed, so --skip continues an interrupted output.");
  }
  int run() override;

 private:
  [[nodiscard]] bool is_conversation() const;
  void converse(TextModel& model) const;

  std::string path_, adapter_;
  bool stdin_ = false;
  GenerateSettings settings_;
};

void show_settings(const SamplingSettings& sampling, const spec::GenerationConfig& config,
                   const GenerateSettings& settings) {
  if (!config.unsupported.empty()) {
    std::string keys;
    for (const std::string& key : config.unsupported) keys += (keys.empty() ? "" : ", ") + key;
    log::warn(format("{}: not supported, and ignored: {}", spec::kGenerationConfig, keys));
  }
  if (sampling.is_greedy() && settings.n > 1)
    log::warn(
        format("The {} texts of a prompt are the same: decoding is greedy; --temperature 1 "
               "samples",
               settings.n));
  if (!settings.json) log::info(format("Settings: {}", sampling.text()));
}

// Shows a prompt to people; a conversation as its messages.
std::string prompt_text(const Json& prompt) {
  if (prompt.is_string()) return prompt.get<std::string>();
  std::string out;
  for (const Json& message : prompt) {
    const Json content = message.value("content", Json());
    out += format("{}{}: {}", out.empty() ? "" : "\n", message.value("role", std::string()),
                  content.is_string() ? content.get<std::string>() : content.dump());
  }
  return out;
}

// Index of the prompt and of its text, both from 0.
struct Place {
  std::uint64_t prompt = 0, sample = 0;
};

// Writes texts in the order of the prompts, whatever order they finish in.
class Output {
 public:
  Output(const text::Tokenizer& tokenizer, const GenerateSettings& settings)
      : tokenizer_(tokenizer), settings_(settings), next_(settings.skip) {}

  /// Writes finished texts up to the first unfinished one.
  void add(const Request& request, Place place, const rollout::Response& response) {
    if (!response.ended) ++truncated_;
    const std::string text = tokenizer_.decode(response.tokens);
    const auto n = static_cast<std::uint64_t>(settings_.n);
    ended_.emplace(place.prompt * n + place.sample, settings_.json
                                                        ? line(request, place, response, text)
                                                        : block(request, place, response, text));
    std::string lines;
    while (!ended_.empty() && ended_.begin()->first == next_) {
      lines += ended_.begin()->second;
      ended_.erase(ended_.begin());
      ++next_;
    }
    throw_if_error(write_output(lines));
  }
  [[nodiscard]] std::uint64_t truncated() const { return truncated_; }

 private:
  [[nodiscard]] static std::string line(const Request& request, Place place,
                                        const rollout::Response& response, const std::string& text);
  [[nodiscard]] std::string block(const Request& request, Place place,
                                  const rollout::Response& response, const std::string& text) const;

  const text::Tokenizer& tokenizer_;
  const GenerateSettings& settings_;
  std::uint64_t next_, truncated_ = 0;
  std::map<std::uint64_t, std::string> ended_;
};

std::string Output::line(const Request& request, Place place, const rollout::Response& response,
                         const std::string& text) {
  Json out = Json::object();
  out["prompt"] = request.prompt;
  out["sample"] = place.sample;
  out["text"] = text;
  out["tokens"] = response.tokens;
  out["log_probs"] = response.log_probs;
  out["finish_reason"] = response.ended ? "stop" : "length";
  return json_text(out) + "\n";
}

// Formats a text; the prompt precedes its first text.
std::string Output::block(const Request& request, Place place, const rollout::Response& response,
                          const std::string& text) const {
  const auto n = static_cast<std::uint64_t>(settings_.n);
  std::string out;
  if (place.sample == 0 || place.prompt * n + place.sample == settings_.skip)
    out = format("=== prompt {}\n{}\n", place.prompt + 1, prompt_text(request.prompt));
  const std::string of = n > 1 ? format(" {} of {}", place.sample + 1, n) : std::string();
  return out + format("--- text{}: {} tokens{}\n{}\n", of, response.tokens.size(),
                      response.ended ? "" : ", cut", text);
}

// Some consecutive prompts.
struct Part {
  std::vector<Request> requests;
  std::uint64_t first = 0;  // number of prompts before them
  bool last = false;
};

class Generate {
 public:
  Generate(const GenerateSettings& settings, TextModel& model);
  void run();

 private:
  [[nodiscard]] Part read_part();
  [[nodiscard]] std::int64_t most_new_tokens(const Request& request) const {
    return sampling_.most_new_tokens(std::ssize(request.tokens), model_.shape().longest_sequence(),
                                     request.where);
  }
  void respond(const Part& part, Progress& progress);
  void respond(const Part& part, const std::vector<std::uint64_t>& texts, Progress& progress);

  const GenerateSettings& settings_;
  TextModel& model_;
  SamplingSettings sampling_;
  PromptSource source_;
  Output output_;
  std::uint64_t prompts_ = 0;  // number of prompts read
};

Generate::Generate(const GenerateSettings& settings, TextModel& model)
    : settings_(settings),
      model_(model),
      sampling_(settings.sampling, model.config(), kNewTokens),
      source_(settings.prompts, model.tokenizer()),
      output_(model.tokenizer(), settings) {}

Part Generate::read_part() {
  Part part;
  const std::int64_t most = std::max(kTextsPerPart, kBatchesPerPart * settings_.batch);
  Bytes bytes;
  const auto n = static_cast<std::uint64_t>(settings_.n);
  while (std::ssize(part.requests) * settings_.n < most && bytes < kMostPartBytes) {
    Request request;
    part.last = !source_.next(request);
    if (part.last) break;
    (void)most_new_tokens(request);  // fails before any text is generated
    if (++prompts_ * n <= settings_.skip) continue;
    if (part.requests.empty()) part.first = prompts_ - 1;
    bytes += Bytes(request.tokens.size() * sizeof(text::TokenId));
    part.requests.push_back(std::move(request));
  }
  return part;
}

// Texts that need different position scaling are generated separately, so that no text depends on
// others.
void Generate::respond(const Part& part, Progress& progress) {
  const auto n = static_cast<std::uint64_t>(settings_.n);
  const std::uint64_t begin = std::max(part.first * n, settings_.skip);
  const spec::Architecture& shape = model_.shape();
  std::map<std::int64_t, std::vector<std::uint64_t>> alike;
  for (std::uint64_t text = begin; text < (part.first + part.requests.size()) * n; ++text) {
    const Request& request = part.requests[text / n - part.first];
    const std::int64_t length = std::ssize(request.tokens) + most_new_tokens(request);
    alike[std::max(spec::least_alike(shape.rotary, length),
                   spec::least_alike(shape.sliding_rotary, length))]
        .push_back(text);
  }
  for (const auto& [length, texts] : alike) respond(part, texts, progress);
}

void Generate::respond(const Part& part, const std::vector<std::uint64_t>& texts,
                       Progress& progress) {
  const auto n = static_cast<std::uint64_t>(settings_.n);
  const auto request_of = [&](std::uint64_t text) -> const Request& {
    return part.requests[text / n - part.first];
  };
  rollout::GenerateOptions options;
  options.sampling = sampling_.sampling();
  options.sampling.log_probs = settings_.json;
  std::vector<rollout::Prompt> prompts;
  for (const std::uint64_t text : texts) {
    prompts.push_back({request_of(text).tokens, random_key({settings_.seed, text / n, text % n}),
                       most_new_tokens(request_of(text))});
    options.max_new_tokens = std::max(options.max_new_tokens, prompts.back().max_new_tokens);
  }
  rollout::StopStrings stops(model_.tokenizer(), sampling_.stop());
  options.stops = [&](std::size_t response, std::int64_t token) {
    return stops.push(response, token);
  };
  options.on_response = [&](std::size_t response, const rollout::Response& r) {
    const std::uint64_t text = texts[response];
    output_.add(request_of(text), {text / n, text % n}, r);
    progress.add(1);
  };
  (void)model_.generate(
      prompts, {settings_.batch, settings_.max_num_batched_tokens, settings_.max_total_tokens},
      options);
}

void Generate::run() {
  Part part = read_part();
  if (prompts_ == 0)
    throw Error(ErrorCode::kInvalidArgument,
                source_.empty_lines() > 0
                    ? "There is no prompt: all lines of standard input are empty"
                    : "There is no prompt: give --prompt TEXT, --stdin or --input FILE, or --chat "
                      "for a conversation");
  if (part.requests.empty()) return;
  show_settings(sampling_, model_.config(), settings_);
  model_.load(settings_.device);
  const std::uint64_t texts = prompts_ * static_cast<std::uint64_t>(settings_.n);
  Progress progress("generate", part.last ? texts - settings_.skip : 0, "texts");
  while (!part.requests.empty()) {
    respond(part, progress);
    if (part.last) break;
    part = read_part();
  }
  progress.finish();
  if (source_.empty_lines() > 0)
    log::warn(format("{} empty lines of standard input were skipped", source_.empty_lines()));
  if (output_.truncated() > 0)
    log::info(format("{} texts were cut at their longest length; --max-new-tokens sets it",
                     output_.truncated()));
}

bool GenerateCommand::is_conversation() const {
  const PromptOptions& prompts = settings_.prompts;
  return prompts.chat && !stdin_ && prompts.texts.empty() && prompts.file.empty();
}

void GenerateCommand::converse(TextModel& model) const {
  if (settings_.json || settings_.n != 1 || settings_.skip != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "--chat without a prompt is a conversation, which has no --json, --n and --skip");
  const SamplingSettings sampling(settings_.sampling, model.config(), kReplyTokens);
  ChatOptions options{settings_.seed, settings_.max_num_batched_tokens};
  options.ask = ::isatty(STDIN_FILENO) == 1;
  show_settings(sampling, model.config(), settings_);
  model.load(settings_.device);
  if (options.ask) log::info("Ctrl-C stops a reply, Ctrl-D ends the conversation");
  run_chat(model, sampling, options, std::cin);
}

int GenerateCommand::run() {
  TextModel model(model_files(path_, adapter_));
  if (is_conversation()) {
    converse(model);
    return 0;
  }
  if (stdin_) settings_.prompts.lines = &std::cin;
  Generate(settings_, model).run();
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_generate_command() {
  return std::make_unique<GenerateCommand>();
}

}  // namespace neap::cli

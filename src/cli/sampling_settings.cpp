#include "cli/sampling_settings.h"

#include <algorithm>
#include <type_traits>

#include "base/format.h"

namespace neap::cli {

void SamplingFlags::declare(CLI::App& app) {
  app.add_option("--temperature", temperature,
                 "0: the most likely token; default of this and the next four: the checkpoint's "
                 "generation_config.json, else transformers'")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--top-p", top_p,
                 "sample from the smallest set of tokens whose probabilities sum to this")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--top-k", top_k, "sample from this many most likely tokens; 0 or -1: all")
      ->check(CLI::Range(-1, 1 << 30));
  app.add_option("--min-p", min_p, "drop tokens below this fraction of the highest probability")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option(
         "--repetition-penalty", repetition_penalty,
         "divide positive logits of tokens in the prompt or the text, multiply negative ones; "
         "1: off")
      ->check(CLI::Range(1e-6, 100.0));
  app.add_option("--presence-penalty", presence_penalty,
                 "subtracted from the logits of tokens in the text")
      ->check(CLI::Range(-100.0, 100.0))
      ->capture_default_str();
  app.add_option("--frequency-penalty", frequency_penalty,
                 "the same, for each time that the token occurs")
      ->check(CLI::Range(-100.0, 100.0))
      ->capture_default_str();
  app.add_option("--stop", stop, "a text that ends the answer; may be repeated");
}

void SamplingSettings::note(Source source, const char* key, const std::string& value) {
  std::string& notes = notes_[static_cast<std::size_t>(source)];
  notes += format("{}{} {}", notes.empty() ? "" : ", ", key, value);
}

template <class T>
T SamplingSettings::choose(const char* key, const std::optional<T>& flag, T in_file, T neutral) {
  const Source source = flag                        ? Source::kOption
                        : file_.given.contains(key) ? Source::kFile
                                                    : Source::kDefault;
  const T value = flag.value_or(in_file);
  if (source == Source::kDefault && value == neutral) return value;
  if constexpr (std::is_same_v<T, bool>) {
    note(source, key, value ? "true" : "false");
  } else if constexpr (std::is_floating_point_v<T>) {
    note(source, key, format("{:.6g}", value));
  } else {
    note(source, key, format("{}", value));
  }
  return value;
}

SamplingSettings::SamplingSettings(const SamplingFlags& flags, const spec::GenerationConfig& file,
                                   std::int64_t new_tokens)
    : file_(file), stop_(flags.stop) {
  // An option that only sampling reads implies sampling.
  std::optional<bool> sample;
  if (flags.top_p || flags.top_k || flags.min_p) sample = true;
  if (flags.temperature) sample = *flags.temperature > 0;
  if (sample == file.do_sample) sample.reset();  // the file already has this value
  sampling_ = step::greedy_sampling();
  // The default true is not neutral, so greedy decoding is always shown.
  if (choose("do_sample", sample, file.do_sample, true)) {
    const double in_file = file.temperature > 0 ? file.temperature : 1;
    sampling_.temperature = choose("temperature", flags.temperature, in_file, 1.0);
    const std::optional<std::int64_t> top_k =
        flags.top_k ? std::optional(std::max<std::int64_t>(0, *flags.top_k)) : std::nullopt;
    const std::int64_t count = choose("top_k", top_k, file.top_k, std::int64_t{0});
    sampling_.top_k = count > 0 ? count : -1;
    sampling_.top_p = choose("top_p", flags.top_p, file.top_p, 1.0);
    sampling_.min_p = choose("min_p", flags.min_p, file.min_p, 0.0);
  }
  sampling_.repetition_penalty =
      choose("repetition_penalty", flags.repetition_penalty, file.repetition_penalty, 1.0);
  sampling_.presence_penalty = flags.presence_penalty;
  sampling_.frequency_penalty = flags.frequency_penalty;
  if (flags.presence_penalty != 0)
    note(Source::kOption, "presence_penalty", format("{:.6g}", flags.presence_penalty));
  if (flags.frequency_penalty != 0)
    note(Source::kOption, "frequency_penalty", format("{:.6g}", flags.frequency_penalty));
  if (stop_.empty()) stop_ = file.stop_strings;
  choose_length(flags, new_tokens);
}

void SamplingSettings::choose_length(const SamplingFlags& flags, std::int64_t new_tokens) {
  new_tokens_ = new_tokens;
  by_option_ = flags.max_new_tokens.has_value();
  if (!by_option_ && !file_.max_new_tokens && file_.max_length) {
    length_ = file_.max_length;
    return note(Source::kFile, "max_length", format("{}", *length_));
  }
  new_tokens_ = choose("max_new_tokens", flags.max_new_tokens,
                       file_.max_new_tokens.value_or(new_tokens), std::int64_t{0});
}

std::int64_t SamplingSettings::most_new_tokens(std::int64_t prompt_tokens, std::int64_t positions,
                                               const std::string& where) const {
  const std::int64_t room = positions - prompt_tokens;
  const std::int64_t most = length_ ? *length_ - prompt_tokens : new_tokens_;
  if (by_option_ && most > room) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the prompt has {} tokens; with --max-new-tokens {} that is over the "
                       "model's {} positions",
                       where, prompt_tokens, most, positions));
  }
  if (room < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the prompt has {} tokens and the model {} positions: there is no room "
                       "for a text",
                       where, prompt_tokens, positions));
  }
  if (most < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: the prompt has {} tokens, and max_length in {} is {}; set "
                       "--max-new-tokens",
                       where, prompt_tokens, spec::kGenerationConfig, *length_));
  }
  return std::min(most, room);
}

std::string SamplingSettings::text() const {
  constexpr const char* kSources[] = {spec::kGenerationConfig, "options", "default"};
  std::string out;
  for (std::size_t source = 0; source < notes_.size(); ++source) {
    if (notes_[source].empty()) continue;
    out += format("{}{} ({})", out.empty() ? "" : "; ", notes_[source], kSources[source]);
  }
  return out;
}

}  // namespace neap::cli

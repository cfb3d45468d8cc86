// Sampling settings of `neap generate`. Options of the command line come first, then the
// checkpoint's generation_config.json, then the defaults of transformers.
//
// Threads   values.
//
// Failure   neap::Error.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rollout/generator.h"
#include "spec/model/generation_config.h"

namespace neap::cli {

/// Options of the command line. An option that was not given is unset.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k, max_new_tokens;
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::string> stop;

  /// Declares all options except --max-new-tokens.
  void declare(CLI::App& app);
};

class SamplingSettings {
 public:
  /// `file` outlives the settings. `new_tokens`: maximum if neither options nor file limit the new
  /// tokens.
  SamplingSettings(const SamplingFlags& flags, const spec::GenerationConfig& file,
                   std::int64_t new_tokens);

  [[nodiscard]] const step::SamplingOptions& sampling() const { return sampling_; }
  [[nodiscard]] const std::vector<std::string>& stop() const { return stop_; }
  [[nodiscard]] bool is_greedy() const { return sampling_.temperature == 0; }
  /// Maximum of new tokens after a prompt, for a model with this number of positions. Fails if no
  /// position is left; `where` names the prompt.
  [[nodiscard]] std::int64_t most_new_tokens(std::int64_t prompt_tokens, std::int64_t positions,
                                             const std::string& where) const;
  /// The settings that have an effect: "do_sample true, top_p 0.8 (generation_config.json); top_k
  /// 50 (default)".
  [[nodiscard]] std::string text() const;

 private:
  enum class Source : std::uint8_t { kFile, kOption, kDefault };
  template <class T>
  T choose(const char* key, const std::optional<T>& flag, T in_file, T neutral);
  void choose_length(const SamplingFlags& flags, std::int64_t new_tokens);
  void note(Source source, const char* key, const std::string& value);

  const spec::GenerationConfig& file_;
  step::SamplingOptions sampling_;
  std::vector<std::string> stop_;
  std::int64_t new_tokens_ = 0;                 // maximum
  bool by_option_ = false;                      // an option set the maximum
  std::optional<std::int64_t> length_;          // maximum of prompt and text, if given instead
  std::vector<std::string> notes_{"", "", ""};  // texts by source
};

}  // namespace neap::cli

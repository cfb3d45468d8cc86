// generation_config.json of a model's folder: the sampling settings of transformers' generate(). A
// missing key has transformers' default.
//
// Threads   values.
// Failure   Status with the file, the key and its value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::spec {

inline constexpr const char* kGenerationConfig = "generation_config.json";

struct GenerationConfig {
  bool do_sample = false;  ///< false: greedy; the fields up to min_p are ignored
  double temperature = 1;
  std::int64_t top_k = 50;  ///< 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::optional<std::int64_t> max_new_tokens;
  /// Prompt and response together, if max_new_tokens is missing.
  std::optional<std::int64_t> max_length;
  std::vector<std::string> stop_strings;

  Json given = Json::object();  ///< the file's keys, without nulls
  /// Keys in the file that change the output in transformers, and that Neap ignores.
  std::vector<std::string> unsupported;

  /// Returns the defaults if the folder has no such file.
  [[nodiscard]] static Result<GenerationConfig> from_folder(const std::filesystem::path& folder);
  [[nodiscard]] static Result<GenerationConfig> from_json(const Json& json,
                                                          const std::string& where);
};

}  // namespace neap::spec

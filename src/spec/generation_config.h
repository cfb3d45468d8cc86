// generation_config.json of a model's folder: how transformers' generate() samples from the model. A key
// that the file lacks has transformers' default.
//
// Threads   values.   Failure   Status with the file, the key and its value.
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
  bool do_sample = false;  ///< false: the likeliest token; what follows up to min_p is not read
  double temperature = 1;
  std::int64_t top_k = 50;  ///< 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::int64_t> max_length;  ///< of prompt and text, where max_new_tokens is missing
  std::vector<std::string> stop_strings;

  Json given = Json::object();  ///< what the file has, without nulls
  /// Keys of it that change texts in transformers and not here.
  std::vector<std::string> unsupported;

  /// The defaults where the folder has no such file.
  [[nodiscard]] static Result<GenerationConfig> from_folder(const std::filesystem::path& folder);
  [[nodiscard]] static Result<GenerationConfig> from_json(const Json& json,
                                                          const std::string& where);
};

}  // namespace neap::spec

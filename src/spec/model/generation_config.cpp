#include "spec/model/generation_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "spec/types/fields.h"

namespace neap::spec {
namespace {

// A key of another decoding method, with the value at which it has no effect.
struct OtherKey {
  const char* name;
  const char* neutral;  // as JSON
};
constexpr std::array<OtherKey, 23> kOtherKeys = {{{"num_beams", "1"},
                                                  {"num_beam_groups", "1"},
                                                  {"penalty_alpha", "0"},
                                                  {"dola_layers", "null"},
                                                  {"min_length", "0"},
                                                  {"min_new_tokens", "0"},
                                                  {"max_time", "null"},
                                                  {"typical_p", "1"},
                                                  {"epsilon_cutoff", "0"},
                                                  {"eta_cutoff", "0"},
                                                  {"top_h", "null"},
                                                  {"encoder_repetition_penalty", "1"},
                                                  {"no_repeat_ngram_size", "0"},
                                                  {"encoder_no_repeat_ngram_size", "0"},
                                                  {"bad_words_ids", "null"},
                                                  {"force_words_ids", "null"},
                                                  {"forced_bos_token_id", "null"},
                                                  {"forced_eos_token_id", "null"},
                                                  {"suppress_tokens", "[]"},
                                                  {"begin_suppress_tokens", "[]"},
                                                  {"sequence_bias", "null"},
                                                  {"guidance_scale", "1"},
                                                  {"exponential_decay_length_penalty", "null"}}};

double share(Fields& f, const char* key, double missing) {
  const double value = f.number(key, missing);
  if (value < 0 || value > 1) f.fail(key, format("is {}; it can be 0 to 1", value));
  return value;
}

std::vector<std::string> texts(Fields& f, const char* key) {
  std::vector<std::string> out;
  if (!f.has(key)) return out;
  const Json& value = f.value(key);
  for (const Json& text : value.is_array() ? value : Json::array({value})) {
    if (text.is_string()) {
      out.push_back(text.get<std::string>());
    } else {
      f.fail(key, format("has {}, which is not text", text.dump()));
    }
  }
  return out;
}

}  // namespace

Result<GenerationConfig> GenerationConfig::from_json(const Json& json, const std::string& where) {
  if (!json.is_object())
    return Status(ErrorCode::kInvalidArgument, format("{}: not a JSON object", where));
  GenerationConfig out;
  for (const auto& [key, value] : json.items())
    if (!value.is_null()) out.given[key] = value;
  constexpr Range kLengths{1, kMaxPositions};
  Fields f(out.given, where);
  out.do_sample = f.boolean("do_sample", out.do_sample);
  out.temperature = f.number("temperature", out.temperature);
  if (out.temperature < 0 || (out.do_sample && out.temperature == 0))
    f.fail("temperature", format("is {}; with do_sample it must be above 0", out.temperature));
  // -1 means all, as 0 does.
  out.top_k = std::max<std::int64_t>(0, f.integer("top_k", out.top_k, {-1, kMaxVocab}));
  out.top_p = share(f, "top_p", out.top_p);
  out.min_p = share(f, "min_p", out.min_p);
  out.repetition_penalty = f.positive("repetition_penalty", out.repetition_penalty);
  out.max_new_tokens = f.integer_or_null("max_new_tokens", std::nullopt, kLengths);
  out.max_length = f.integer_or_null("max_length", std::nullopt, kLengths);
  out.stop_strings = texts(f, "stop_strings");
  for (const OtherKey& key : kOtherKeys) {
    if (f.has(key.name) && f.value(key.name) != Json::parse(key.neutral))
      out.unsupported.emplace_back(key.name);
  }
  if (!f.status().ok()) return f.status();
  return out;
}

Result<GenerationConfig> GenerationConfig::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kGenerationConfig;
  if (std::error_code error; !std::filesystem::exists(file, error)) return GenerationConfig{};
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, read_limits::kModelJson));
  NEAP_TRY_ASSIGN(const Json json, parse_json(text, file.string()));
  return from_json(json, file.string());
}

}  // namespace neap::spec

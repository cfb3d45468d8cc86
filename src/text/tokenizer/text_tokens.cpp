#include "text/tokenizer/text_tokens.h"

#include <algorithm>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/status.h"

namespace neap::text {
namespace {

namespace fs = std::filesystem;

// Reads a token id or a list of them; -1 and null mean none.
std::vector<TokenId> ids_of(const Json& config, const char* key, const fs::path& file) {
  std::vector<TokenId> out;
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return out;
  for (const Json& value : it->is_array() ? *it : Json::array({*it})) {
    if (!value.is_number_integer()) {
      throw Error(ErrorCode::kCorrupt, format("{}: {} has {}, which is not a token id",
                                              file.string(), key, value.dump()));
    }
    if (value.get<TokenId>() >= 0) out.push_back(value.get<TokenId>());
  }
  return out;
}

}  // namespace

bool TextTokens::is_end(TokenId id) const {
  return std::find(ends.begin(), ends.end(), id) != ends.end();
}

TextTokens text_tokens(const fs::path& folder, const spec::Architecture& shape,
                       const Tokenizer& tokenizer) {
  const fs::path file = folder / "generation_config.json";
  Json config = Json::object();
  if (std::error_code ignored; fs::exists(file, ignored)) {
    config = value_or_throw(
        parse_json(value_or_throw(read_file(file, read_limits::kModelJson)), file.string()));
    if (!config.is_object())
      throw Error(ErrorCode::kCorrupt, format("{}: not a JSON object", file.string()));
  }
  TextTokens out;
  out.ends = ids_of(config, "eos_token_id", file);
  if (out.ends.empty()) out.ends = shape.eos_token_ids;
  if (out.ends.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("Neither config.json nor generation_config.json in {} has an eos_token_id: "
                       "nothing would end a text",
                       folder.string()));
  }
  for (const TokenId id : out.ends) {
    if (id < shape.vocab_size) continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: eos_token_id {} is not in the model's vocabulary of {} tokens",
                       folder.string(), id, shape.vocab_size));
  }
  out.end = out.ends.front();
  if (tokenizer.eos() && out.is_end(*tokenizer.eos())) out.end = *tokenizer.eos();
  const std::vector<TokenId> pads = ids_of(config, "pad_token_id", file);
  out.pad = shape.pad_token_id >= 0 ? shape.pad_token_id
            : !pads.empty()         ? pads.front()
                                    : tokenizer.pad().value_or(out.end);
  if (out.pad >= shape.vocab_size) out.pad = out.end;
  return out;
}

}  // namespace neap::text

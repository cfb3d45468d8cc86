#include "cli/prompt_source.h"

#include "base/format.h"
#include "data/fields.h"

namespace neap::cli {

PromptSource::PromptSource(const PromptOptions& options, const model::Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer) {
  if (!options.file.empty()) rows_ = value_or_throw(data::RowSource::open(options.file));
}

Json PromptSource::prompt_of(const std::string& text) const {
  if (!options_.chat) return text;
  return Json::array({Json{{"role", "user"}, {"content", text}}});
}

bool PromptSource::read(Request& request) {
  if (texts_ < options_.texts.size()) {
    request.prompt = prompt_of(options_.texts[texts_]);
    request.where = format("--prompt {}", ++texts_);
    return true;
  }
  std::string line;
  while (options_.lines != nullptr && std::getline(*options_.lines, line)) {
    ++lines_;
    if (line.empty()) continue;
    request.prompt = prompt_of(line);
    request.where = format("standard input:{}", lines_);
    return true;
  }
  data::RawRow raw;
  if (rows_ == nullptr || !value_or_throw(rows_->next(raw))) return false;
  request.where = rows_->where(raw.number);
  const Json row = value_or_throw(data::parse_row(raw.text, request.where));
  request.prompt = value_or_throw(data::text_field(row, "prompt", request.where));
  if (request.prompt.is_string()) request.prompt = prompt_of(request.prompt.get<std::string>());
  return true;
}

void PromptSource::encode(Request& request) {
  if (request.prompt.is_string()) {
    request.tokens = tokenizer_.encode_prompt(request.prompt.get<std::string>());
  } else {
    if (!conversations_) conversations_ = value_or_throw(chat::Conversations::make(tokenizer_));
    Result<std::vector<model::TokenId>> tokens = conversations_->prompt(request.prompt);
    request.tokens = value_or_throw(
        tokens.ok()
            ? std::move(tokens)
            : Result<std::vector<model::TokenId>>(
                  Status(tokens.status()).with_context(format("encoding {}", request.where))));
  }
  if (request.tokens.empty())
    throw Error(ErrorCode::kInvalidArgument, format("{}: the prompt has no tokens", request.where));
}

bool PromptSource::next(Request& request) {
  if (!read(request)) return false;
  encode(request);
  return true;
}

}  // namespace neap::cli

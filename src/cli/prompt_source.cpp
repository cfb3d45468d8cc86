#include "cli/prompt_source.h"

#include "base/format.h"
#include "data/fields.h"

namespace neap::cli {

PromptSource::PromptSource(const PromptOptions& options, const text::Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer) {
  if (options.file.empty()) return;
  auto rows = data::RowSource::open(options.file);
  if (!rows.ok()) throw Error(data::wrong_input(rows.status()));
  rows_ = std::move(*rows);
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
    if (line.empty()) {
      ++empty_lines_;
      continue;
    }
    request.prompt = prompt_of(line);
    request.where = format("standard input:{}", lines_);
    return true;
  }
  if (rows_ == nullptr) return false;
  const Result<bool> more = read_row(request);
  if (!more.ok()) throw Error(data::wrong_input(more.status()));
  return *more;
}

Result<bool> PromptSource::read_row(Request& request) {
  data::RawRow raw;
  NEAP_TRY_ASSIGN(const bool more, rows_->next(raw));
  if (!more) return false;
  request.where = rows_->where(raw.number);
  NEAP_TRY_ASSIGN(const Json row, data::parse_row(raw.text, request.where));
  NEAP_TRY_ASSIGN(request.prompt, data::text_field(row, "prompt", request.where));
  if (request.prompt.is_string()) request.prompt = prompt_of(request.prompt.get<std::string>());
  NEAP_TRY_ASSIGN(request.tools, data::tools_field(row, request.prompt, request.where));
  return true;
}

void PromptSource::encode(Request& request) {
  if (request.prompt.is_string()) {
    request.tokens = tokenizer_.encode_prompt(request.prompt.get<std::string>());
  } else {
    if (!conversations_) conversations_ = value_or_throw(chat::Conversations::make(tokenizer_));
    Result<std::vector<text::TokenId>> tokens =
        conversations_->prompt(request.prompt, request.tools);
    request.tokens = value_or_throw(
        tokens.ok()
            ? std::move(tokens)
            : Result<std::vector<text::TokenId>>(
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

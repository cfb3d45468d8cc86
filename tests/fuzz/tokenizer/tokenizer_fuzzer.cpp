// Any tokenizer.json is refused with one error or encodes any text. The input is the file's text and,
// behind a zero byte, the text to encode.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace {

using neap::text::StreamDecoder;
using neap::text::TokenId;
using neap::text::Tokenizer;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, true);
  for (const TokenId id : ids) require(id >= 0 && id < tokenizer.vocab_size());
  require(ids == tokenizer.encode(text, true));  // from the cache
  for (const bool skip : {false, true}) {
    StreamDecoder stream(tokenizer, skip);
    std::string streamed;
    for (const TokenId id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    require(streamed == tokenizer.decode(ids, skip));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  try {
    check(Tokenizer::from_json(input.substr(0, end), "fuzz"), text.substr(0, 4096));
  } catch (const neap::Error& e) {
    require(std::string_view(e.what()).size() < 4096);
  }
  return 0;
}

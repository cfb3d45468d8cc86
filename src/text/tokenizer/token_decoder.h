// The decoder of tokenizer.json: token strings to text, all at once or one by one.
//
// Threads   TokenDecoder: const calls from any thread. DecodeStream: one thread.
// Failure   neap::Error naming the file and the stage; where decoding takes more than its Budget, too.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/budget.h"
#include "text/tokenizer/tree.h"

namespace neap::text {

class DecodeStage;

/// Takes tokens one by one and returns the text that has become certain. Everything pushed and
/// finish() together are the text of all tokens. What is not certain is held back: bytes of a
/// character that is not complete, and byte tokens until a token that is none follows, because one
/// wrong byte changes the text of the whole run.
class DecodeStream {
 public:
  explicit DecodeStream(std::vector<std::unique_ptr<DecodeStage>> stages);
  DecodeStream(DecodeStream&&) noexcept;
  DecodeStream& operator=(DecodeStream&&) noexcept;
  ~DecodeStream();
  [[nodiscard]] std::string push(std::string_view token);
  [[nodiscard]] std::string finish();

 private:
  std::unique_ptr<Budget> budget_;                    // grows with the tokens
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // the last one collects the text
};

class TokenDecoder {
 public:
  TokenDecoder() = default;
  /// From the file's "decoder"; null: tokens with spaces between them.
  TokenDecoder(const Tree& config, std::string_view where);
  [[nodiscard]] DecodeStream stream() const;

 private:
  void add(const Tree& config, std::string_view where);
  std::vector<std::shared_ptr<const DecodeStage>> stages_;  // copied for each stream
};

}  // namespace neap::text

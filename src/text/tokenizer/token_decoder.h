// The decoder of tokenizer.json: converts token strings to text, all at once or one at a time.
//
// Threads   TokenDecoder: const calls from any thread. DecodeStream: one thread.
//
// Failure   neap::Error naming the file and the stage; also if decoding exceeds its Budget.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/budget.h"
#include "text/tokenizer/tree.h"

namespace neap::text {

class DecodeStage;

/// Takes tokens one at a time and returns the text that later tokens cannot change. All pushes and
/// finish() together give the text of all tokens. Bytes of an incomplete character are held back.
/// Byte tokens are held back until another token follows, because one wrong byte changes the text
/// of the whole run.
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
  /// Reads the file's "decoder"; null: joins tokens with spaces.
  TokenDecoder(const Tree& config, std::string_view where);
  [[nodiscard]] DecodeStream stream() const;

 private:
  void add(const Tree& config, std::string_view where);
  std::vector<std::shared_ptr<const DecodeStage>> stages_;  // copied for each stream
};

}  // namespace neap::text

// Detects stop texts in a growing response.
//
// Texts are compared after decoding, so a stop text is found however tokens split it.
//
// Threads   one at a time.
// Cost      the decoding of each token once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace neap::rollout {

class StopStrings {
 public:
  /// Empty strings are ignored.
  StopStrings(const text::Tokenizer& tokenizer, std::vector<std::string> strings);

  /// Adds the next token of a response. Returns true if its text now contains a stop text.
  [[nodiscard]] bool push(std::size_t response, std::int64_t token);

 private:
  struct Text {
    text::StreamDecoder decoder;
    std::string tail;  // end of the text, where a stop text may begin
  };

  text::Tokenizer tokenizer_;
  std::vector<std::string> strings_;
  std::size_t longest_ = 0;
  std::map<std::size_t, Text> texts_;
};

}  // namespace neap::rollout

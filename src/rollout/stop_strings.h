// Tells when the text of a growing response contains one of some strings.
//
// Text is what the tokenizer decodes, so that a string is found wherever tokens cut it.
// Threads   one at a time.   Cost   the decoding of each token once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace neap::rollout {

class StopStrings {
 public:
  /// Empty strings are left out.
  StopStrings(const text::Tokenizer& tokenizer, std::vector<std::string> strings);

  /// Takes the next token of a response. True: its text now contains one of the strings.
  [[nodiscard]] bool push(std::size_t response, std::int64_t token);

 private:
  struct Text {
    text::StreamDecoder decoder;
    std::string tail;  // that may begin a string
  };

  text::Tokenizer tokenizer_;
  std::vector<std::string> strings_;
  std::size_t longest_ = 0;
  std::map<std::size_t, Text> texts_;
};

}  // namespace neap::rollout

// Lines of a file that may be packed, one after the other.
//
// Threads   one user.
// Failure   kCorrupt for a line over the limit, with file:line; what Input says.
// Memory    the longest line, at most the limit, and Input's buffers.
#pragma once

#include "base/input.h"

namespace neap {

class LineReader {
 public:
  struct Line {
    std::string_view text;     ///< without its end; valid until the next line is read
    std::uint64_t number = 0;  ///< from 1
    bool ended = false;        ///< false: the file ends without a newline
  };
  LineReader(Input input, Bytes most) : input_(std::move(input)), most_(most) {}
  /// False at the end.
  [[nodiscard]] Result<bool> next(Line& line);
  [[nodiscard]] const Input& input() const { return input_; }
  /// "a.jsonl:12"
  [[nodiscard]] std::string where(std::uint64_t number) const;

 private:
  Input input_;
  Bytes most_;
  std::uint64_t lines_ = 0;
};

}  // namespace neap

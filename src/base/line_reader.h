// Reads a file line by line; the file may be compressed.
//
// Threads   one user.
// Failure   kCorrupt with file:line for a line over the limit; failures of Input.
// Memory    the longest line, at most the limit, and Input's buffers.
#pragma once

#include "base/input.h"
#include "base/read_limits.h"

namespace neap {

/// Counts lines against `part` of limits, which outlive it.
class LineReader {
 public:
  struct Line {
    std::string_view text;     ///< without the line break; valid until the next line is read
    std::uint64_t number = 0;  ///< from 1
    bool ended = false;        ///< false: the file ends without a newline after this line
  };
  LineReader(Input input, const ReadLimits& limits) : input_(std::move(input)), limits_(&limits) {}
  /// Reads the next line. False at the end of the file.
  [[nodiscard]] Result<bool> next(Line& line);
  [[nodiscard]] const Input& input() const { return input_; }
  /// Place of a line for messages: "a.jsonl:12".
  [[nodiscard]] std::string where(std::uint64_t number) const;

 private:
  Input input_;
  const ReadLimits* limits_;
  std::uint64_t lines_ = 0;
};

}  // namespace neap

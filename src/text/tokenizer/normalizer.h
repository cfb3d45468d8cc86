// The normalizer of tokenizer.json, which changes a text before it is split.
//
// Threads   const calls from any thread.
//
// Failure   neap::Error naming the file and the stage; also if a text exceeds its Budget.
//
// Cost      one copy of the text per stage.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/tree.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {

class Normalizer {
 public:
  Normalizer() = default;
  /// Reads the file's "normalizer"; null: texts are not changed.
  Normalizer(const Tree& config, std::string_view where);

  [[nodiscard]] bool empty() const { return stages_.empty(); }
  [[nodiscard]] std::string apply(std::string_view text, Budget& budget) const;

 private:
  struct Lowercase {};
  struct ByteLevel {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    SplitPattern pattern;
    std::string by;
  };
  struct Strip {
    bool left, right;
  };
  using Stage = std::variant<utf8::Form, Lowercase, ByteLevel, Prepend, Replace, Strip>;
  void add(const Tree& config, std::string_view where);
  [[nodiscard]] static std::string apply(const Stage& stage, const std::string& text,
                                         Budget& budget);

  std::vector<Stage> stages_;
};

/// Parses the pattern of a Split or Replace: {"String": ...} or {"Regex": ...}.
[[nodiscard]] SplitPattern pattern_of(const Tree& value, std::string_view where);

}  // namespace neap::text

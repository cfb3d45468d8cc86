// Splits text into the pieces that BPE merges stay within, by the patterns of tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace neap::model {

/// Objects as sorted maps: a vocabulary of 150,000 keys parses in time n log n, which neap::Json,
/// whose objects keep their order by searching, does not.
using Tree = nlohmann::json;

/// GPT-2's pattern, which ByteLevel uses where the file names none.
extern const char* const kGpt2Pattern;

/// A compiled pattern in Hugging Face's dialect. Threads: const calls from any thread.
class SplitPattern {
 public:
  /// `where` names the file in errors.
  SplitPattern(std::string_view pattern, std::string_view where);
  /// Appends matches and the texts between them, in order, none empty. Bytes that are not UTF-8
  /// never match.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

class PreTokenizer {
 public:
  /// From the file's "pre_tokenizer" (null: the whole text is one piece).
  PreTokenizer(const Tree& config, std::string_view where);
  PreTokenizer() = default;
  /// Pieces of a text between added tokens. `storage` keeps a changed copy of the text alive.
  void split(std::string_view text, std::string& storage,
             std::vector<std::string_view>& pieces) const;
  [[nodiscard]] bool byte_level() const { return byte_level_; }

 private:
  void add(const Tree& config, std::string_view where);
  std::vector<SplitPattern> stages_;
  bool add_prefix_space_ = false;
  bool byte_level_ = false;
};

}  // namespace neap::model

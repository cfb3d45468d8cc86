// The pre-tokenizer of tokenizer.json. It splits text into pieces; BPE merges never cross a piece's
// border.
//
// Threads   const calls from any thread.
//
// Failure   neap::Error naming the file and the stage; also if a text exceeds its Budget.
//
// Cost      a pass over the text per stage; stages that change text copy it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/tree.h"

namespace neap::text {

/// Pieces of a text, and the copies that some pieces refer to.
struct Pieces {
  std::vector<std::string_view> list;
  std::deque<std::string> kept;
  void clear() {
    list.clear();
    kept.clear();
  }

 private:
  friend class PreTokenizer;
  std::vector<std::string_view> stage;  // input of the next stage
  std::vector<MatchPart> parts;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Reads the file's "pre_tokenizer"; null: the whole text is one piece.
  PreTokenizer(const Tree& config, std::string_view where);

  /// Appends the pieces of a text between added tokens. `first`: the text is the beginning of the
  /// input.
  void split(std::string_view text, bool first, Pieces& pieces, Budget& budget) const;
  /// Whether pieces must be spelled in the byte alphabet. split() returns plain bytes.
  [[nodiscard]] bool byte_level() const { return byte_level_; }

 private:
  struct Pattern {
    SplitPattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct Points {  // splits at code points of one class
    Points(std::function<bool(std::int32_t)> matches, SplitBehavior at);
    [[nodiscard]] bool operator()(std::int32_t point) const {
      return point < 0x80 ? ascii[static_cast<std::size_t>(point)] : others(point);
    }
    SplitBehavior behavior;
    std::array<bool, 0x80> ascii{};
    std::function<bool(std::int32_t)> others;
  };
  struct PrefixSpace {};
  struct Metaspace {
    std::string mark;
    enum { kAlways, kFirst, kNever } prepend;
    bool split;
  };
  struct FixedLength {
    std::size_t points;
  };
  using Stage = std::variant<Pattern, Points, PrefixSpace, Metaspace, FixedLength>;
  void add(const Tree& config, std::string_view where);
  void add_byte_level(const Tree& config, std::string_view where);
  void add_metaspace(const Tree& config, std::string_view where);
  static void apply(const Stage& stage, std::string_view text, bool first, Pieces& pieces,
                    Budget& budget);
  static void apply_metaspace(const Metaspace& stage, std::string_view text, bool first,
                              Pieces& pieces, Budget& budget);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace neap::text

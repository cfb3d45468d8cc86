#include "text/tokenizer/pretokenizer.h"

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {
namespace {

SplitBehavior behavior_of(const Tree& value, std::string_view where) {
  const std::string name = text_of(value);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  corrupt(where, format("a split has the behavior {}", value.dump()));
}

template <class Matches>
void match_points(std::string_view text, const Matches& matches, std::vector<MatchPart>& parts) {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Point p = utf8::front(text.substr(at));
    if (p.value >= 0 && matches(p.value)) {
      if (at > done) parts.push_back({done, at, false});
      parts.push_back({at, at + p.bytes, true});
      done = at + p.bytes;
    }
    at += p.bytes;
  }
  if (done < text.size()) parts.push_back({done, text.size(), false});
}

}  // namespace

PreTokenizer::Points::Points(std::function<bool(std::int32_t)> matches, SplitBehavior at)
    : behavior(at), others(std::move(matches)) {
  for (std::int32_t c = 0; c < 0x80; ++c) ascii[static_cast<std::size_t>(c)] = others(c);
}

PreTokenizer::PreTokenizer(const Tree& config, std::string_view where) {
  if (!config.is_null()) add(config, where);
}

void PreTokenizer::add(const Tree& config, std::string_view where) {
  const std::string type = type_of(config, where, "pre_tokenizer");
  if (type == "Sequence") {
    for (const Tree& stage : stages_of(config, "pretokenizers", where)) add(stage, where);
    return;
  }
  if (byte_level_)
    refuse(where,
           format("its pre_tokenizer has {} behind ByteLevel, which is not supported", type));
  const auto points = [&](bool (*matches)(std::int32_t), SplitBehavior behavior) {
    stages_.emplace_back(Points{matches, behavior});
  };
  if (type == "ByteLevel") {
    add_byte_level(config, where);
  } else if (type == "Split") {
    stages_.emplace_back(Pattern{pattern_of(field(config, "pattern"), where),
                                 behavior_of(field(config, "behavior"), where),
                                 flag(config, "invert")});
  } else if (type == "Metaspace") {
    add_metaspace(config, where);
  } else if (type == "Digits") {
    points(utf8::is_numeric, flag(config, "individual_digits") ? SplitBehavior::kIsolated
                                                               : SplitBehavior::kContiguous);
  } else if (type == "Punctuation") {
    const Tree& behavior = field(config, "behavior");
    points(utf8::is_punctuation,
           behavior.is_null() ? SplitBehavior::kIsolated : behavior_of(behavior, where));
  } else if (type == "WhitespaceSplit") {
    points(utf8::is_space, SplitBehavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    points(utf8::is_space, SplitBehavior::kRemoved);
    points(utf8::is_punctuation, SplitBehavior::kIsolated);
  } else if (type == "Whitespace") {
    // Splits into runs of \w and runs of characters that are neither \w nor white space.
    points(utf8::is_space, SplitBehavior::kRemoved);
    points(utf8::is_word, SplitBehavior::kContiguous);
  } else if (type == "CharDelimiterSplit") {
    const std::string text = text_of(field(config, "delimiter"));
    if (text.empty() || utf8::front(text).bytes != text.size())
      corrupt(where, "a CharDelimiterSplit has no delimiter of one character");
    stages_.emplace_back(
        Points{[point = utf8::front(text).value](std::int32_t c) { return c == point; },
               SplitBehavior::kRemoved});
  } else if (type == "FixedLength") {
    const Tree& length = field(config, "length");
    if (!length.is_number_integer() || length.get<std::int64_t>() < 1)
      corrupt(where, format("a FixedLength has the length {}", length.dump()));
    stages_.emplace_back(FixedLength{length.get<std::size_t>()});
  } else {
    refuse(where,
           format("its pre_tokenizer is {}; supported are ByteLevel, Split, Metaspace, Digits, "
                  "Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, "
                  "CharDelimiterSplit, FixedLength and Sequence",
                  type));
  }
}

void PreTokenizer::add_byte_level(const Tree& config, std::string_view where) {
  byte_level_ = true;
  if (flag(config, "add_prefix_space", true)) stages_.emplace_back(PrefixSpace{});
  if (flag(config, "use_regex", true))
    stages_.emplace_back(Pattern{{kGpt2Pattern, where}, SplitBehavior::kIsolated, false});
}

void PreTokenizer::add_metaspace(const Tree& config, std::string_view where) {
  Metaspace stage;
  stage.mark = text_of(field(config, "replacement"));
  if (stage.mark.empty() || utf8::front(stage.mark).bytes != stage.mark.size())
    corrupt(where, "a Metaspace has no replacement of one character");
  const Tree& scheme = field(config, "prepend_scheme");
  const std::string name = scheme.is_null()
                               ? flag(config, "add_prefix_space", true) ? "always" : "never"
                               : text_of(scheme);
  if (name != "always" && name != "first" && name != "never")
    corrupt(where, format("a Metaspace has the prepend_scheme {}", scheme.dump()));
  stage.prepend = name == "always"  ? Metaspace::kAlways
                  : name == "first" ? Metaspace::kFirst
                                    : Metaspace::kNever;
  stage.split = flag(config, "split", true);
  stages_.emplace_back(std::move(stage));
}

void PreTokenizer::apply_metaspace(const Metaspace& stage, std::string_view text, bool first,
                                   Pieces& pieces, Budget& budget) {
  std::string made;
  made.reserve(text.size() + text.size() / 2);
  const bool prepends =
      stage.prepend == Metaspace::kAlways || (stage.prepend == Metaspace::kFirst && first);
  if (prepends && !text.starts_with(' ') && !text.starts_with(stage.mark)) made = stage.mark;
  for (const char c : text) {
    if (c == ' ') {
      made += stage.mark;
    } else {
      made += c;
    }
  }
  budget.take(sizeof(std::string) + made.size());
  const std::string_view whole = pieces.kept.emplace_back(std::move(made));
  if (!stage.split) {
    pieces.list.push_back(whole);
    return;
  }
  for (std::size_t begin = 0; begin < whole.size();) {  // each mark begins a piece
    const std::size_t end = std::min(whole.find(stage.mark, begin + 1), whole.size());
    pieces.list.push_back(whole.substr(begin, end - begin));
    begin = end;
  }
}

void PreTokenizer::apply(const Stage& stage, std::string_view text, bool first, Pieces& pieces,
                         Budget& budget) {
  if (const auto* pattern = std::get_if<Pattern>(&stage)) {
    if (pattern->behavior == SplitBehavior::kIsolated) {
      pattern->pattern.split(text, pieces.list, budget);
      return;
    }
    pieces.parts.clear();
    pattern->pattern.match(text, pieces.parts, budget);
    for (MatchPart& part : pieces.parts) part.match = part.match != pattern->invert;
    split_parts(text, pieces.parts, pattern->behavior, pieces.list);
  } else if (const auto* points = std::get_if<Points>(&stage)) {
    pieces.parts.clear();
    match_points(text, *points, pieces.parts);
    split_parts(text, pieces.parts, points->behavior, pieces.list);
  } else if (const auto* metaspace = std::get_if<Metaspace>(&stage)) {
    apply_metaspace(*metaspace, text, first, pieces, budget);
  } else if (const auto* fixed = std::get_if<FixedLength>(&stage)) {
    std::size_t begin = 0, points_seen = 0;
    for (std::size_t at = 0; at < text.size();) {
      at += utf8::front(text.substr(at)).bytes;
      if (++points_seen % fixed->points != 0 && at < text.size()) continue;
      pieces.list.push_back(text.substr(begin, at - begin));
      begin = at;
    }
  } else if (text.starts_with(' ')) {
    pieces.list.push_back(text);
  } else {
    budget.take(text.size());
    pieces.list.push_back(pieces.kept.emplace_back(" " + std::string(text)));
  }
}

void PreTokenizer::split(std::string_view text, bool first, Pieces& pieces, Budget& budget) const {
  if (text.empty()) return;
  const std::size_t before = pieces.list.size();
  pieces.list.push_back(text);
  const char* begin = text.data();  // start of the first piece
  for (const Stage& stage : stages_) {
    pieces.stage.assign(pieces.list.begin() + static_cast<std::ptrdiff_t>(before),
                        pieces.list.end());
    budget.spend(pieces.stage.size());
    pieces.list.resize(before);
    const char* next_begin = nullptr;
    for (const std::string_view piece : pieces.stage) {
      const bool first_piece = first && piece.data() == begin;
      const std::size_t at = pieces.list.size();
      apply(stage, piece, first_piece, pieces, budget);
      if (!first_piece || pieces.list.size() == at) continue;
      // If a stage removed the beginning of the text, no piece is the first one.
      const std::string_view made = pieces.list[at];
      const bool copied = made.data() < piece.data() || made.data() >= piece.data() + piece.size();
      if (copied || made.data() == piece.data()) next_begin = made.data();
    }
    begin = next_begin;
  }
}

}  // namespace neap::text

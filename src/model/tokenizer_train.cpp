// Training byte-level BPE: count pieces, then merge the most frequent pair until the vocabulary is
// full. Counts are kept up to date by the words that hold a pair, so a merge costs its occurrences.
#include <algorithm>
#include <queue>
#include <unordered_set>

#include "base/format.h"
#include "base/status.h"
#include "model/byte_alphabet.h"
#include "model/tokenizer_state.h"
#include "model/utf8.h"

namespace neap::model {
namespace {

using Id = Bpe::Id;
using Pair = std::uint64_t;

Pair pair_of(Id left, Id right) {
  return Pair{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
Id left_of(Pair p) {
  return static_cast<Id>(p >> 32);
}
Id right_of(Pair p) {
  return static_cast<Id>(p & 0xffffffff);
}

struct Word {
  std::vector<Id> symbols;
  std::int64_t count = 0;
};
struct PairState {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // that hold it, or did
};
struct Entry {
  std::int64_t count;
  Pair pair;
  // The most frequent first; among equals the smaller ids.
  bool operator<(const Entry& o) const {
    return count != o.count ? count < o.count : pair > o.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const auto& s = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < s.size(); ++i) change(pair_of(s[i], s[i + 1]), w, +1);
    }
    flush();
  }

  struct Best {
    Id left, right;
    std::int64_t count;
  };
  /// The pair to merge next; nothing when no pair is left.
  std::optional<Best> next() {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[top.pair].count;
      if (now <= 0) continue;
      if (now != top.count) {
        queue_.push({now, top.pair});
        continue;
      }
      return Best{left_of(top.pair), right_of(top.pair), now};
    }
    return std::nullopt;
  }

  void merge(Id left, Id right, Id merged) {
    const Pair pair = pair_of(left, right);
    std::vector<std::uint32_t> holders = std::move(pairs_[pair].words);
    std::sort(holders.begin(), holders.end());
    holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    for (const std::uint32_t w : holders) {
      auto& s = words_[w].symbols;
      std::size_t out = 0;
      for (std::size_t i = 0; i < s.size();) {
        if (i + 1 < s.size() && s[i] == left && s[i + 1] == right) {
          if (out > 0) {
            change(pair_of(s[out - 1], left), w, -1);
            change(pair_of(s[out - 1], merged), w, +1);
          }
          if (i + 2 < s.size()) {
            change(pair_of(right, s[i + 2]), w, -1);
            change(pair_of(merged, s[i + 2]), w, +1);
          }
          s[out++] = merged;
          i += 2;
        } else {
          s[out++] = s[i++];
        }
      }
      s.resize(out);
    }
    pairs_.erase(pair);
    flush();
  }

 private:
  void change(Pair pair, std::uint32_t word, int sign) {
    PairState& state = pairs_[pair];
    state.count += sign * words_[word].count;
    if (sign > 0) {
      if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
      touched_.push_back(pair);
    }
  }
  void flush() {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const Pair pair : touched_) {
      const auto it = pairs_.find(pair);
      if (it != pairs_.end() && it->second.count > 0) queue_.push({it->second.count, pair});
    }
    touched_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, PairState> pairs_;
  std::priority_queue<Entry> queue_;
  std::vector<Pair> touched_;
};

Tree byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Tree pre_tokenizer_of(const std::string& pattern) {
  if (pattern.empty()) return byte_level(false, true);
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            byte_level(false, false)}}};
}

/// The pieces of all texts with their counts.
StringMap<std::int64_t> count_pieces(
    const std::string& split_pattern,
    const std::function<std::optional<std::string_view>()>& next_text) {
  const SplitPattern pattern(split_pattern.empty() ? kGpt2Pattern : split_pattern.c_str(),
                             "pattern");
  StringMap<std::int64_t> counts;
  std::vector<std::string_view> pieces;
  while (const auto text = next_text()) {
    pieces.clear();
    pattern.split(*text, pieces);
    for (const std::string_view piece : pieces) {
      const auto it = counts.find(piece);
      if (it != counts.end()) {
        ++it->second;
      } else {
        counts.emplace(piece, 1);
      }
    }
  }
  return counts;
}

/// Special tokens first, then the 256 bytes, then what merges add.
class Vocabulary {
 public:
  explicit Vocabulary(const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) {
      if (token.empty() || ids_.contains(token))
        throw Error(ErrorCode::kInvalidArgument,
                    format("The special token \"{}\" is empty or there twice", token));
      add(token);
    }
    // The alphabet in the order of its characters, as Hugging Face's trainer lays it out.
    std::vector<std::pair<std::int32_t, std::size_t>> alphabet;
    for (std::size_t b = 0; b < 256; ++b)
      alphabet.emplace_back(utf8::front(byte_characters()[b]).value, b);
    std::sort(alphabet.begin(), alphabet.end());
    for (const auto& [point, b] : alphabet) byte_ids_[b] = add(byte_characters()[b]);
  }

  /// The id of the token, which is new or known.
  Id add(const std::string& token) {
    const auto [it, fresh] = ids_.emplace(token, static_cast<Id>(tokens_.size()));
    if (fresh) tokens_.push_back(token);
    return it->second;
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  [[nodiscard]] const std::string& token(Id id) const {
    return tokens_[static_cast<std::size_t>(id)];
  }

  /// The words that merges work on, in the order of their pieces.
  [[nodiscard]] std::vector<Word> words(const StringMap<std::int64_t>& counts) const {
    std::vector<std::pair<std::string_view, std::int64_t>> ordered(counts.begin(), counts.end());
    std::sort(ordered.begin(), ordered.end());
    std::vector<Word> words;
    words.reserve(ordered.size());
    for (const auto& [piece, count] : ordered) {
      Word word;
      word.count = count;
      for (const char c : piece) word.symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      words.push_back(std::move(word));
    }
    return words;
  }

  [[nodiscard]] Tree to_json() const {
    Tree vocab = Tree::object();
    for (std::size_t i = 0; i < tokens_.size(); ++i) vocab[tokens_[i]] = i;
    return vocab;
  }

 private:
  std::vector<std::string> tokens_;
  StringMap<Id> ids_;
  std::array<Id, 256> byte_ids_{};
};

/// Adds the tokens that merges make until the vocabulary is full; returns the merges.
Tree merge_pairs(const BpeTrainOptions& options, Trainer trainer, Vocabulary& vocabulary) {
  Tree merges = Tree::array();
  while (vocabulary.size() < options.vocab_size) {
    const auto best = trainer.next();
    if (!best || best->count < std::max<std::int64_t>(1, options.min_frequency)) break;
    const std::string left = vocabulary.token(best->left);
    const std::string right = vocabulary.token(best->right);
    const Id merged = vocabulary.add(left + right);
    merges.push_back(Tree::array({left, right}));
    trainer.merge(best->left, best->right, merged);
  }
  return merges;
}

/// tokenizer.json.
Tree document_of(const BpeTrainOptions& options, Tree vocab, Tree merges) {
  Tree added = Tree::array();
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    added.push_back({{"id", i},
                     {"content", options.special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  Tree document = {
      {"version", "1.0"},          {"truncation", nullptr},
      {"padding", nullptr},        {"added_tokens", std::move(added)},
      {"normalizer", nullptr},     {"pre_tokenizer", pre_tokenizer_of(options.pattern)},
      {"post_processor", nullptr}, {"decoder", byte_level(true, true)}};
  document["model"] = {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false}};
  document["model"]["vocab"] = std::move(vocab);
  document["model"]["merges"] = std::move(merges);
  return document;
}

}  // namespace

Tokenizer Tokenizer::train(const BpeTrainOptions& options,
                           const std::function<std::optional<std::string_view>()>& next_text) {
  const auto specials = static_cast<std::int64_t>(options.special_tokens.size());
  if (options.vocab_size < specials + 256)
    throw Error(ErrorCode::kInvalidArgument,
                format("vocab_size {} is below the {} special tokens and 256 bytes",
                       options.vocab_size, specials));
  Vocabulary vocabulary(options.special_tokens);
  const StringMap<std::int64_t> counts = count_pieces(options.pattern, next_text);
  Tree merges = merge_pairs(options, Trainer(vocabulary.words(counts)), vocabulary);
  const Tree document = document_of(options, vocabulary.to_json(), std::move(merges));
  Tokenizer t = from_json(document.dump(1), "the trained tokenizer");
  t.state_->eos = t.id_of("<|endoftext|>");
  return t;
}

}  // namespace neap::model

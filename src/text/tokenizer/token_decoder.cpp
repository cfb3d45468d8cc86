#include "text/tokenizer/token_decoder.h"

#include <algorithm>

#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/text_budget.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {

/// A step of decoding, which passes its output to the next step. A token may arrive in parts.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  [[nodiscard]] virtual std::unique_ptr<DecodeStage> fresh() const = 0;
  /// Takes a part of a token. `begins`: it is the first part; `ends`: it is the last.
  virtual void take(std::string_view text, bool begins, bool ends) = 0;
  /// Call after the last token.
  virtual void finish() = 0;
  DecodeStage* next = nullptr;
  Budget* budget = nullptr;  ///< budget of the stream
};

namespace {

template <class Self>
class Stage : public DecodeStage {
 public:
  [[nodiscard]] std::unique_ptr<DecodeStage> fresh() const override {
    return std::make_unique<Self>(static_cast<const Self&>(*this));
  }
};

/// A step that needs whole tokens.
template <class Self>
class WholeTokens : public Stage<Self> {
 public:
  void take(std::string_view text, bool begins, bool ends) override {
    if (begins && ends) return token(text);
    held_ += text;
    if (!ends) return;
    token(held_);
    held_.clear();
  }
  void finish() override { this->next->finish(); }
  virtual void token(std::string_view text) = 0;

 protected:
  void emit(std::string_view text) { this->next->take(text, true, true); }

 private:
  std::string held_;
};

/// Joins all tokens into one. Without input it emits nothing.
template <class Self>
class Joins : public Stage<Self> {
 protected:
  void part(std::string_view text) {
    if (text.empty()) return;
    this->next->take(text, !begun_, false);
    begun_ = true;
  }
  void close() {
    if (seen_) this->next->take("", !begun_, true);
    this->next->finish();
  }
  bool seen_ = false;

 private:
  bool begun_ = false;
};

class Fuse : public Joins<Fuse> {
 public:
  void take(std::string_view text, bool, bool) override {
    seen_ = true;
    part(text);
  }
  void finish() override { close(); }
};

/// Converts tokens in the byte alphabet to bytes, and the bytes to text.
class ByteLevel : public Joins<ByteLevel> {
 public:
  void take(std::string_view text, bool begins, bool ends) override {
    seen_ = true;
    if (begins && ends) {
      bytes_ += bytes_of_token(text);
    } else {
      token_ += text;
      if (!ends) return;
      bytes_ += bytes_of_token(token_);
      token_.clear();
    }
    release(false);
  }
  void finish() override {
    release(true);
    close();
  }

 private:
  void release(bool final) {
    std::string text;
    bytes_.erase(0, utf8::append_lossy(text, bytes_, final));
    part(text);
  }
  std::string token_;  // current incomplete token
  std::string bytes_;  // bytes of an incomplete character
};

class Replace : public WholeTokens<Replace> {
 public:
  Replace(SplitPattern pattern, std::string by)
      : pattern_(std::move(pattern)), by_(std::move(by)) {}
  void token(std::string_view text) override { emit(pattern_.replace(text, by_, *budget)); }

 private:
  SplitPattern pattern_;
  std::string by_;
};

class ByteFallback : public WholeTokens<ByteFallback> {
 public:
  void token(std::string_view text) override {
    const int byte = byte_of(text);
    if (byte >= 0) {
      run_ += static_cast<char>(byte);
      return;
    }
    flush();
    emit(text);
  }
  void finish() override {
    flush();
    next->finish();
  }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                    : -1;
    };
    const int high = digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
  void flush() {
    if (run_.empty()) return;
    if (is_utf8(run_)) {
      emit(run_);
    } else {
      for (std::size_t i = 0; i < run_.size(); ++i) emit("\xef\xbf\xbd");
    }
    run_.clear();
  }
  std::string run_;  // bytes of consecutive byte tokens
};

class Metaspace : public WholeTokens<Metaspace> {
 public:
  Metaspace(const std::string& mark, bool drops_first)
      : mark_(SplitPattern::literal(mark, "")), drop_(drops_first) {}
  void token(std::string_view text) override {
    emit(mark_.replace(text, drop_ ? "" : " ", *budget));
    drop_ = false;
  }

 private:
  SplitPattern mark_;
  bool drop_;  // removes the spaces of the first token's marks
};

/// Removes up to `left` occurrences of a character at the front of each token, and up to `right` at
/// its end.
class Strip : public Stage<Strip> {
 public:
  Strip(std::string character, std::size_t left, std::size_t right)
      : character_(std::move(character)), left_(left), right_(right) {}
  void take(std::string_view text, bool begins, bool ends) override {
    if (begins) {
      to_drop_ = left_;
      open_ = false;
    }
    while (to_drop_ > 0 && text.starts_with(character_)) {
      text.remove_prefix(character_.size());
      --to_drop_;
    }
    if (!text.empty()) to_drop_ = 0;
    held_ += text;
    // Hold back characters that may have to be removed at the token's end.
    std::size_t keep = held_.size();
    for (std::size_t n = 0;
         n < right_ && std::string_view(held_).substr(0, keep).ends_with(character_); ++n)
      keep -= character_.size();
    const std::string out = held_.substr(0, keep);
    held_.erase(0, keep);
    if (ends) held_.clear();
    if (out.empty() && !ends) return;
    next->take(out, !open_, ends);
    open_ = !ends;
  }
  void finish() override { next->finish(); }

 private:
  std::string character_;
  std::size_t left_, right_;
  std::size_t to_drop_ = 0;
  std::string held_;
  bool open_ = false;  // a part of this token was passed on
};

/// Joins tokens with spaces: the behaviour without a decoder.
class Spaces : public Stage<Spaces> {
 public:
  void take(std::string_view text, bool begins, bool ends) override {
    if (begins && any_) next->take(" ", true, true);
    any_ = true;
    next->take(text, begins, ends);
  }
  void finish() override { next->finish(); }

 private:
  bool any_ = false;
};

/// The last step: collects the text so far.
class Collect : public Stage<Collect> {
 public:
  void take(std::string_view part, bool, bool) override { text += part; }
  void finish() override {}
  std::string text;
};

}  // namespace

DecodeStream::DecodeStream(std::vector<std::unique_ptr<DecodeStage>> stages)
    : budget_(new Budget(text_budget(0))), stages_(std::move(stages)) {
  for (const auto& stage : stages_) stage->budget = budget_.get();
  for (std::size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->next = stages_[i + 1].get();
}
DecodeStream::DecodeStream(DecodeStream&&) noexcept = default;
DecodeStream& DecodeStream::operator=(DecodeStream&&) noexcept = default;
DecodeStream::~DecodeStream() = default;

std::string DecodeStream::push(std::string_view token) {
  budget_->give_back(kMostGrowth * token.size());
  budget_->restart_clock();
  stages_.front()->take(token, true, true);
  return std::exchange(static_cast<Collect&>(*stages_.back()).text, {});
}
std::string DecodeStream::finish() {
  budget_->restart_clock();
  stages_.front()->finish();
  return std::exchange(static_cast<Collect&>(*stages_.back()).text, {});
}

TokenDecoder::TokenDecoder(const Tree& config, std::string_view where) {
  if (config.is_null()) {
    stages_.push_back(std::make_shared<Spaces>());
  } else {
    add(config, where);
  }
  stages_.push_back(std::make_shared<Collect>());
}

void TokenDecoder::add(const Tree& config, std::string_view where) {
  const std::string type = type_of(config, where, "decoder");
  if (type == "Sequence") {
    for (const Tree& stage : stages_of(config, "decoders", where)) add(stage, where);
  } else if (type == "ByteLevel") {
    stages_.push_back(std::make_shared<ByteLevel>());
  } else if (type == "ByteFallback") {
    stages_.push_back(std::make_shared<ByteFallback>());
  } else if (type == "Fuse") {
    stages_.push_back(std::make_shared<Fuse>());
  } else if (type == "Replace") {
    stages_.push_back(std::make_shared<Replace>(pattern_of(field(config, "pattern"), where),
                                                text_of(field(config, "content"))));
  } else if (type == "Metaspace") {
    const std::string mark = text_of(field(config, "replacement"));
    if (mark.empty()) corrupt(where, "its decoder Metaspace has no replacement");
    const Tree& scheme = field(config, "prepend_scheme");
    const bool never =
        scheme.is_null() ? !flag(config, "add_prefix_space", true) : text_of(scheme) == "never";
    stages_.push_back(std::make_shared<Metaspace>(mark, !never));
  } else if (type == "Strip") {
    const auto count = [&](const char* key) -> std::size_t {
      const Tree& n = field(config, key);
      if (n.is_null()) return 0;
      if (!n.is_number_integer() || n.get<std::int64_t>() < 0)
        corrupt(where, format("its decoder Strip has \"{}\" {}", key, n.dump()));
      return n.get<std::size_t>();
    };
    const std::string character = text_of(field(config, "content"));
    if (character.empty()) corrupt(where, "its decoder Strip has no content");
    stages_.push_back(std::make_shared<Strip>(character, count("start"), count("stop")));
  } else {
    refuse(where,
           format("its decoder is {}; supported are ByteLevel, ByteFallback, Fuse, Metaspace, "
                  "Replace, Strip and Sequence",
                  type));
  }
}

DecodeStream TokenDecoder::stream() const {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  for (const auto& stage : stages_) stages.push_back(stage->fresh());
  return DecodeStream(std::move(stages));
}

}  // namespace neap::text

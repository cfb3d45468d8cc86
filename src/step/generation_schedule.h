// What a generation does, without tensors: a list of actions, and the scheduler that makes it.
//
// Each sequence takes a row of the cache. As one ends, a waiting one takes its row, so the cache's size
// bounds memory and not the number of sequences. Sequences of one prompt that start together share its
// prefill. When nothing waits, sequences move to lower rows as others end, so that steps get smaller.
// step/generation.h executes actions over any operations: those of a run as it makes them, a recorded
// list again, or the list that a plan takes as a bound.
//
// Threads   one at a time.   Failure   Status on prompts that do not fit.
// Cost      an action takes time in proportion to its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <variant>
#include <vector>

#include "base/status.h"
#include "spec/job.h"

namespace neap::step {

/// Before the first sequence.
struct ClearCache {};
/// Whole prompts, padded to one width; gives the sequences that start with them their first tokens.
struct PrefillPrompts {
  std::int64_t width = 0;
  std::vector<std::int64_t> lengths;  ///< tokens of each prompt
  std::vector<std::int64_t> rows;     ///< of each sequence
  std::vector<std::int64_t> prompts;  ///< of each sequence: the place of its prompt in `lengths`
  /// The rows of each prompt, none of them empty.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> rows_by_prompt() const;
};
/// Tokens [first, first + count) of one prompt; the last chunk gives its sequences their first tokens.
struct PrefillChunk {
  std::int64_t width = 0;  ///< of the longest prompt, as above
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool last = false;
  std::vector<std::int64_t> rows;  ///< of each sequence
};
/// A token for each of the first rows; idle ones compute what is not read. No sequence that is decoded
/// has more than `key_limit` tokens before it.
struct DecodeStep {
  std::int64_t rows = 0;
  std::int64_t key_limit = 1;
};
/// The sequence of a row, which has so many tokens, goes to an idle row.
struct MoveRow {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t tokens = 0;
};
/// The sequence of a row has ended.
struct EndRow {
  std::int64_t row = 0;
};
using GenerationAction =
    std::variant<ClearCache, PrefillPrompts, PrefillChunk, DecodeStep, MoveRow, EndRow>;

/// Appends the chunks of a prompt of so many tokens, none longer than `chunk`.
template <class Actions>
void append_chunks(Actions& actions, PrefillChunk shape, std::int64_t length, std::int64_t chunk) {
  for (shape.first = 0; shape.first < length; shape.first += chunk) {
    shape.count = std::min(chunk, length - shape.first);
    shape.last = shape.first + shape.count == length;
    actions.push_back(shape);
  }
}

struct GenerationLimits {
  std::int64_t rows = 0;          ///< of the cache
  std::int64_t row_tokens = 0;    ///< of each row
  std::int64_t prompt_width = 0;  ///< at least the tokens of the longest prompt
  std::int64_t max_new_tokens = 0;
  spec::PrefillShape
      prefill{};  ///< fewer tokens than prompt_width: one prompt at a time, in chunks
};

/// A sequence that is to be generated.
struct SequenceStart {
  std::size_t prompt = 0;          ///< equal prompts have the same number
  std::int64_t prompt_tokens = 0;  ///< at least one
};

class GenerationSchedule {
 public:
  static constexpr std::size_t kIdle = ~std::size_t{0};
  /// Row `row` starts a sequence of up to `tokens` tokens; false: the cache has no room until another
  /// one ends (KvLayout::start).
  using StartRow = std::function<bool(std::int64_t row, std::int64_t tokens)>;

  /// Without sequences or new tokens there is nothing to do.
  [[nodiscard]] static Result<GenerationSchedule> make(const GenerationLimits& limits,
                                                       std::vector<SequenceStart> sequences,
                                                       StartRow start);

  /// The next action, after all before it are executed and their tokens are added; null once every
  /// sequence has ended. It stays valid until the next call.
  [[nodiscard]] Result<const GenerationAction*> next();
  /// The sequence of a row got a token, which may be its last. Whether the sequence has ended with it.
  bool add_token(std::int64_t row, bool ends);

  /// kIdle: none.
  [[nodiscard]] std::size_t sequence_of(std::int64_t row) const { return row_of(row).sequence; }
  /// Place of its last token.
  [[nodiscard]] std::int64_t position(std::int64_t row) const { return row_of(row).tokens - 1; }
  /// Tokens of its response.
  [[nodiscard]] std::int64_t new_tokens(std::int64_t row) const;
  /// Sequences that have ended.
  [[nodiscard]] std::size_t ended() const { return ended_; }

 private:
  struct Row {
    std::size_t sequence = kIdle;
    std::int64_t tokens = 0;  // of the prompt and the response
  };
  GenerationSchedule(const GenerationLimits& limits, std::vector<SequenceStart> sequences,
                     StartRow start);

  [[nodiscard]] Status check() const;
  [[nodiscard]] Status no_room() const;
  [[nodiscard]] const Row& row_of(std::int64_t row) const {
    return rows_[static_cast<std::size_t>(row)];
  }
  [[nodiscard]] bool in_chunks() const { return limits_.prefill.tokens < limits_.prompt_width; }
  [[nodiscard]] std::int64_t rows_in_use() const;
  [[nodiscard]] PrefillPrompts fill_rows();
  void admit();
  void compact();
  void decode();

  GenerationLimits limits_;
  std::vector<SequenceStart> sequences_;
  StartRow start_;
  std::vector<Row> rows_;
  std::size_t waiting_ = 0;  // sequences from here on have not started
  std::size_t ended_ = 0;
  std::deque<GenerationAction> actions_;  // that come next
  GenerationAction current_;
};

}  // namespace neap::step

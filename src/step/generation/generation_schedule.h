// A generation without tensors: a list of actions, and the scheduler that produces it.
//
// Each sequence uses a row of the cache. When it ends, a waiting sequence takes its row. So the
// cache's size bounds memory, but not the number of sequences. Sequences of one prompt that start
// together share its prefill. If the cache still has a prompt's tokens of earlier sequences, only the
// rest of it is prefilled. When no row can start, sequences move to lower rows as others end, so
// that steps get smaller. Actions can be executed over any operations (step/generation/generation.h):
// those that a run produces, a recorded list, or the list that a plan uses as a bound.
//
// Pauses    if the cache has no room for further tokens, the sequence that started last gives its
//           row back. Once there is room, it is prefilled again with the tokens that it has.
// Reads     the tokens of an action may be added after the next actions. Until then their sequences
//           go on. A sequence whose last token is queued frees its row for the next action.
// Threads   one at a time.
// Failure   Status for prompts that do not fit.
// Cost      an action takes time in proportion to its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "base/status.h"
#include "spec/job/job.h"
#include "step/model/page_table.h"

namespace neap::step {

/// Precedes the first sequence.
struct ClearCache {};
/// Prefills whole prompts, padded to one width, and samples the first tokens of their sequences.
struct PrefillPrompts {
  std::int64_t width = 0;
  std::vector<std::int64_t> lengths;  ///< tokens of each prompt
  std::vector<std::int64_t> rows;     ///< per sequence
  std::vector<std::int64_t> prompts;  ///< per sequence: the index of its prompt in `lengths`
  /// The rows of each prompt; each has at least one.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> rows_by_prompt() const;
};
/// Prefills tokens [first, first + count) of one prompt, or of a sequence that has waited. Tokens
/// before the first chunk are in the cache. The last chunk samples the next tokens of its sequences.
struct PrefillChunk {
  std::int64_t width = 0;  ///< width of the longest prompt, or of the sequence
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool last = false;
  std::vector<std::int64_t> rows;  ///< per sequence
};
/// Decodes `steps` tokens for each of the first rows; the host reads them together. Results of idle
/// rows are not used, nor those after the end of a sequence. Before the first step, no decoded
/// sequence has more than `key_limit` tokens.
struct DecodeStep {
  std::int64_t rows = 0;
  std::int64_t key_limit = 1;
  std::int64_t steps = 1;
};
/// Moves the sequence of a row, with its number of tokens, to an idle row.
struct MoveRow {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t tokens = 0;
};
/// The sequence of a row has ended, or waits.
struct EndRow {
  std::int64_t row = 0;
};
/// The tokens of all actions are added before the next action.
struct ReadTokens {};
using GenerationAction =
    std::variant<ClearCache, PrefillPrompts, PrefillChunk, DecodeStep, MoveRow, EndRow, ReadTokens>;

/// Appends the chunks of tokens [shape.first, length), each of at most `chunk` tokens.
template <class Actions>
void append_chunks(Actions& actions, PrefillChunk shape, std::int64_t length, std::int64_t chunk) {
  for (; shape.first < length; shape.first += chunk) {
    shape.count = std::min(chunk, length - shape.first);
    shape.last = shape.first + shape.count == length;
    actions.push_back(shape);
  }
}

struct GenerationLimits {
  std::int64_t rows = 0;          ///< of the cache
  std::int64_t row_tokens = 0;    ///< per row
  std::int64_t prompt_width = 0;  ///< at least the tokens of the longest prompt
  std::int64_t max_new_tokens = 0;
  spec::PrefillShape
      prefill{};  ///< fewer tokens than prompt_width: one prompt at a time, in chunks
  std::int64_t decode_steps = 1;  ///< maximum steps of a DecodeStep
  /// A DecodeStep has a power of two rows, or all, so that few steps differ.
  bool rows_in_powers = false;
};

/// A sequence to be generated.
struct SequenceStart {
  std::size_t prompt = 0;           ///< equal prompts have the same number
  std::int64_t prompt_tokens = 0;   ///< at least one
  std::int64_t max_new_tokens = 0;  ///< at most those of GenerationLimits; 0: these
};

/// The rows of a cache (KvLayout).
struct CacheRows {
  std::function<std::optional<std::int64_t>(std::int64_t row, const RowStart& sequence)> start;
  std::function<bool(std::int64_t row, std::int64_t tokens)> grow;
};

class GenerationSchedule {
 public:
  static constexpr std::size_t kIdle = ~std::size_t{0};

  /// Without sequences or new tokens there is nothing to do.
  [[nodiscard]] static Result<GenerationSchedule> make(const GenerationLimits& limits,
                                                       std::vector<SequenceStart> sequences,
                                                       CacheRows cache);

  /// The next action. Call it after executing the previous one. Null once no sequence needs one. It is
  /// valid until the next call.
  [[nodiscard]] Result<const GenerationAction*> next();
  /// Adds the next token of a sequence that has not ended; `ends`: it is the last one. Returns whether the
  /// sequence has ended.
  bool add_token(std::size_t sequence, bool ends);
  [[nodiscard]] bool has_ended(std::size_t sequence) const { return progress_[sequence].ended; }

  /// kIdle: none.
  [[nodiscard]] std::size_t sequence_of(std::int64_t row) const { return row_of(row).sequence; }
  /// Position of its last token before the current action.
  [[nodiscard]] std::int64_t position(std::int64_t row) const { return row_of(row).tokens - 1; }
  /// Number of response tokens before the current action.
  [[nodiscard]] std::int64_t new_tokens(std::int64_t row) const;
  /// Number of ended sequences.
  [[nodiscard]] std::size_t ended() const { return ended_; }

 private:
  struct Row {
    std::size_t sequence = kIdle;
    std::int64_t tokens = 0;  // of the prompt and the response, before the current action
  };
  /// Tokens that were added.
  struct Progress {
    std::int64_t tokens = 0;
    bool ended = false;
  };
  GenerationSchedule(const GenerationLimits& limits, std::vector<SequenceStart> sequences,
                     CacheRows cache);

  [[nodiscard]] Status check() const;
  [[nodiscard]] Status no_room() const;
  [[nodiscard]] const Row& row_of(std::int64_t row) const {
    return rows_[static_cast<std::size_t>(row)];
  }
  [[nodiscard]] bool in_chunks() const { return limits_.prefill.tokens < limits_.prompt_width; }
  [[nodiscard]] std::int64_t rows_in_use() const;
  [[nodiscard]] std::int64_t rows_to_decode() const;
  [[nodiscard]] std::optional<std::int64_t> start(std::int64_t row, std::size_t sequence,
                                                  std::int64_t tokens);
  struct Admitted {
    PrefillPrompts prompts;
    std::int64_t stored = 0;  // first tokens of the only prompt that are not computed again
  };
  [[nodiscard]] Admitted fill_rows();
  void admit();
  void resume();
  [[nodiscard]] bool make_room(std::int64_t steps);
  [[nodiscard]] bool has_unread_tokens() const;
  void pause_last();
  void compact();
  void decode();
  void count_tokens(const GenerationAction& action);
  void count_tokens(std::int64_t row, std::int64_t count);
  void free_row(std::int64_t row);

  GenerationLimits limits_;
  std::vector<SequenceStart> sequences_;
  CacheRows cache_;
  std::vector<Row> rows_;
  std::vector<Progress> progress_;               // per sequence
  std::size_t waiting_ = 0;                      // sequences from here on have not started
  std::map<std::size_t, std::int64_t> resumed_;  // sequences that wait again, and their tokens
  std::size_t ended_ = 0;
  std::deque<GenerationAction> actions_;  // the next actions
  GenerationAction current_;
};

}  // namespace neap::step

#include "step/generation/generation_schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/format.h"
#include "step/attention/decoding.h"

namespace neap::step {

std::vector<std::vector<std::int64_t>> PrefillPrompts::rows_by_prompt() const {
  std::vector<std::vector<std::int64_t>> out(lengths.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    out[static_cast<std::size_t>(prompts[i])].push_back(rows[i]);
  return out;
}

GenerationSchedule::GenerationSchedule(const GenerationLimits& limits,
                                       std::vector<SequenceStart> sequences, CacheRows cache)
    : limits_(limits), sequences_(std::move(sequences)), cache_(std::move(cache)) {
  // A chunked pass has chunks of one prompt.
  if (in_chunks()) limits_.prefill.prompts = std::min<std::int64_t>(1, limits_.prefill.prompts);
  if (limits_.max_new_tokens <= 0) sequences_.clear();
  for (SequenceStart& sequence : sequences_)
    if (sequence.max_new_tokens == 0) sequence.max_new_tokens = limits_.max_new_tokens;
  progress_.resize(sequences_.size());
  const std::int64_t wanted = std::ssize(sequences_);
  rows_.resize(static_cast<std::size_t>(limits_.rows_in_powers && wanted > 0
                                            ? decode_bucket(wanted, limits_.rows)
                                            : std::min(limits_.rows, wanted)));
  if (!sequences_.empty()) actions_.emplace_back(ClearCache{});
}

Result<GenerationSchedule> GenerationSchedule::make(const GenerationLimits& limits,
                                                    std::vector<SequenceStart> sequences,
                                                    CacheRows cache) {
  GenerationSchedule out(limits, std::move(sequences), std::move(cache));
  NEAP_TRY(out.check());
  return out;
}

Status GenerationSchedule::check() const {
  if (sequences_.empty()) return {};
  if (limits_.prompt_width + limits_.max_new_tokens > limits_.row_tokens) {
    return {ErrorCode::kInvalidArgument,
            format("{} prompt and {} new tokens do not fit into a cache of {} tokens",
                   limits_.prompt_width, limits_.max_new_tokens, limits_.row_tokens)};
  }
  if (limits_.prefill.prompts < 1 || limits_.prefill.tokens < 1) {
    return {ErrorCode::kInvalidArgument,
            format("Prefilling {} tokens of {} prompts at a time makes no progress",
                   limits_.prefill.tokens, limits_.prefill.prompts)};
  }
  if (limits_.decode_steps < 1) {
    return {ErrorCode::kInvalidArgument,
            format("Decoding {} steps at a time makes no progress", limits_.decode_steps)};
  }
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const std::int64_t length = sequences_[i].prompt_tokens;
    if (length == 0 || length > limits_.prompt_width) {
      return {ErrorCode::kInvalidArgument, format("Prompt {} has {} tokens; 1 to {} are possible",
                                                  i, length, limits_.prompt_width)};
    }
    if (sequences_[i].max_new_tokens > limits_.max_new_tokens) {
      return {ErrorCode::kInvalidArgument,
              format("Sequence {} may have {} new tokens, more than the generation's {}", i,
                     sequences_[i].max_new_tokens, limits_.max_new_tokens)};
    }
  }
  return {};
}

Status GenerationSchedule::no_room() const {
  const std::size_t next = resumed_.empty() ? waiting_ : resumed_.begin()->first;
  return {ErrorCode::kDoesNotFit,
          format("The KV cache has no room for a sequence of {} prompt and {} new tokens",
                 sequences_[next].prompt_tokens, sequences_[next].max_new_tokens)};
}

Result<const GenerationAction*> GenerationSchedule::next() {
  count_tokens(std::exchange(current_, ClearCache{}));
  if (actions_.empty()) admit();
  if (actions_.empty()) {
    if (rows_in_use() > 0) {
      compact();
      if (actions_.empty()) decode();
    } else if (waiting_ < sequences_.size() || !resumed_.empty()) {
      return no_room();
    } else {
      return nullptr;
    }
  }
  current_ = std::move(actions_.front());
  actions_.pop_front();
  return &current_;
}

/// Counts the tokens that an action has made.
void GenerationSchedule::count_tokens(const GenerationAction& action) {
  if (const auto* const prompts = std::get_if<PrefillPrompts>(&action)) {
    for (const std::int64_t row : prompts->rows) count_tokens(row, 1);
  } else if (const auto* const chunk = std::get_if<PrefillChunk>(&action)) {
    if (chunk->last)
      for (const std::int64_t row : chunk->rows) count_tokens(row, 1);
  } else if (const auto* const step = std::get_if<DecodeStep>(&action)) {
    for (std::int64_t row = 0; row < step->rows; ++row) count_tokens(row, step->steps);
  }
}
void GenerationSchedule::count_tokens(std::int64_t row, std::int64_t count) {
  Row& r = rows_[static_cast<std::size_t>(row)];
  if (r.sequence == kIdle) return;
  r.tokens += count;
  if (new_tokens(row) >= sequences_[r.sequence].max_new_tokens) free_row(row);
}
void GenerationSchedule::free_row(std::int64_t row) {
  rows_[static_cast<std::size_t>(row)].sequence = kIdle;
  actions_.emplace_back(EndRow{row});
}

bool GenerationSchedule::add_token(std::size_t sequence, bool ends) {
  Progress& p = progress_[sequence];
  ++p.tokens;
  p.ended = ends || p.tokens >= sequences_[sequence].max_new_tokens;
  if (!p.ended) return false;
  ++ended_;
  const auto row = std::ranges::find(rows_, sequence, &Row::sequence);
  if (row != rows_.end()) free_row(row - rows_.begin());
  return true;
}

std::int64_t GenerationSchedule::new_tokens(std::int64_t row) const {
  const Row& r = row_of(row);
  return r.tokens - sequences_[r.sequence].prompt_tokens;
}

/// Rows up to the last one in use.
std::int64_t GenerationSchedule::rows_in_use() const {
  std::int64_t n = std::ssize(rows_);
  while (n > 0 && sequence_of(n - 1) == kIdle) --n;
  return n;
}

std::int64_t GenerationSchedule::rows_to_decode() const {
  const std::int64_t used = rows_in_use();
  return limits_.rows_in_powers ? decode_bucket(used, std::ssize(rows_)) : used;
}

/// Starts a sequence of so many tokens in a row, with room for those of the next step.
std::optional<std::int64_t> GenerationSchedule::start(std::int64_t row, std::size_t sequence,
                                                      std::int64_t tokens) {
  const SequenceStart& s = sequences_[sequence];
  const std::int64_t most = s.prompt_tokens + s.max_new_tokens;
  const std::int64_t wanted = std::min(tokens + limits_.decode_steps, most);
  const auto stored = cache_.start(row, {s.prompt, s.prompt_tokens, wanted});
  if (stored) rows_[static_cast<std::size_t>(row)] = {sequence, tokens};
  return stored;
}

/// Assigns idle rows to waiting sequences, limited by the number of prompts per pass and by the
/// room in the cache. If earlier sequences have stored the first prompt, it is the only one.
GenerationSchedule::Admitted GenerationSchedule::fill_rows() {
  Admitted out;
  PrefillPrompts& prompts = out.prompts;
  prompts.width = limits_.prompt_width;
  std::int64_t most = limits_.prefill.prompts;
  std::map<std::size_t, std::int64_t> places;  // per prompt
  for (std::int64_t row = 0; row < std::ssize(rows_) && waiting_ < sequences_.size(); ++row) {
    if (sequence_of(row) != kIdle) continue;
    const SequenceStart& sequence = sequences_[waiting_];
    const auto [it, is_new] = places.try_emplace(sequence.prompt, std::ssize(prompts.lengths));
    if (is_new && std::ssize(prompts.lengths) == most) break;
    const std::optional<std::int64_t> stored = start(row, waiting_, sequence.prompt_tokens);
    if (!stored) break;
    ++waiting_;
    if (prompts.rows.empty() && *stored > 0) {
      most = 1;
      // Its last token is computed again: the first new token follows from it.
      out.stored = std::min(*stored, sequence.prompt_tokens - 1);
    }
    if (is_new) prompts.lengths.push_back(sequence.prompt_tokens);
    prompts.rows.push_back(row);
    prompts.prompts.push_back(it->second);
  }
  return out;
}

/// Prefills the first sequence that waits again into an idle row, if it fits.
void GenerationSchedule::resume() {
  const auto idle = std::find_if(rows_.begin(), rows_.end(),
                                 [](const Row& row) { return row.sequence == kIdle; });
  if (idle == rows_.end()) return;
  const std::int64_t row = idle - rows_.begin();
  const auto [sequence, tokens] = *resumed_.begin();
  const auto stored = start(row, sequence, tokens);
  if (!stored) return;
  resumed_.erase(resumed_.begin());
  PrefillChunk chunk;
  chunk.width = tokens;
  chunk.first = *stored;
  chunk.rows = {row};
  append_chunks(actions_, std::move(chunk), tokens, limits_.prefill.of_pass());
}

/// Prefills waiting prompts into idle rows.
void GenerationSchedule::admit() {
  if (!resumed_.empty()) return resume();
  auto [prompts, stored] = fill_rows();
  if (prompts.rows.empty()) return;
  if (in_chunks() || stored > 0) {
    PrefillChunk chunk;
    chunk.width = prompts.width;
    chunk.first = stored;
    chunk.rows = std::move(prompts.rows);
    append_chunks(actions_, std::move(chunk), prompts.lengths.front(), limits_.prefill.tokens);
  } else {
    actions_.emplace_back(std::move(prompts));
  }
}

/// Moves sequences from the last rows to idle ones if at least half of the rows would be idle. No
/// waiting sequence could start in them.
void GenerationSchedule::compact() {
  const auto busy = static_cast<std::int64_t>(std::count_if(
      rows_.begin(), rows_.end(), [](const Row& row) { return row.sequence != kIdle; }));
  if (rows_in_use() < 2 * busy) return;
  std::int64_t idle = 0;
  for (std::int64_t from = rows_in_use(); from-- > busy;) {
    if (sequence_of(from) == kIdle) continue;
    while (sequence_of(idle) != kIdle) ++idle;
    actions_.emplace_back(MoveRow{from, idle, row_of(from).tokens});
    rows_[static_cast<std::size_t>(idle)] =
        std::exchange(rows_[static_cast<std::size_t>(from)], Row{});
  }
}

bool GenerationSchedule::has_unread_tokens() const {
  for (std::int64_t row = 0; row < std::ssize(rows_); ++row) {
    const std::size_t sequence = sequence_of(row);
    if (sequence != kIdle && new_tokens(row) > progress_[sequence].tokens) return true;
  }
  return false;
}

/// Takes the row of the sequence that started last. It waits again.
void GenerationSchedule::pause_last() {
  std::int64_t last = -1;
  for (std::int64_t row = 0; row < std::ssize(rows_); ++row) {
    if (sequence_of(row) != kIdle && (last < 0 || sequence_of(row) > sequence_of(last))) last = row;
  }
  resumed_.emplace(sequence_of(last), row_of(last).tokens);
  free_row(last);
}

/// Makes room for the next tokens of all rows, in the order of sequences. If there is too little, a
/// sequence pauses, once it is known which have ended.
bool GenerationSchedule::make_room(std::int64_t steps) {
  std::map<std::size_t, std::int64_t> rows;  // by sequence
  for (std::int64_t row = 0; row < std::ssize(rows_); ++row)
    if (sequence_of(row) != kIdle) rows.emplace(sequence_of(row), row);
  for (const auto& [sequence, row] : rows) {
    if (cache_.grow(row, row_of(row).tokens + steps - 1)) continue;
    if (has_unread_tokens())
      actions_.emplace_back(ReadTokens{});
    else
      pause_last();
    return false;
  }
  return true;
}

void GenerationSchedule::decode() {
  DecodeStep step{rows_to_decode(), 1, limits_.decode_steps};
  for (std::int64_t row = 0; row < step.rows; ++row) {
    if (sequence_of(row) == kIdle) continue;
    step.key_limit = std::max(step.key_limit, row_of(row).tokens);
    // No step after the last token that a sequence may have: another sequence may use its row then.
    step.steps =
        std::min(step.steps, sequences_[sequence_of(row)].max_new_tokens - new_tokens(row));
  }
  if (make_room(step.steps)) actions_.emplace_back(step);
}

}  // namespace neap::step

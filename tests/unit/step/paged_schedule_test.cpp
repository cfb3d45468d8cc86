// Rollouts whose cache has pages, executed on pages that hold numbers instead of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <vector>

#include "step/generation/generation_schedule.h"

namespace neap::step {
namespace {

class PagedRollout {
 public:
  explicit PagedRollout(std::uint64_t seed) : random_(seed) {
    limits_.rows = between(1, 8);
    limits_.prompt_width = between(1, 200);
    limits_.max_new_tokens = between(1, 250);
    limits_.row_tokens = limits_.prompt_width + limits_.max_new_tokens;
    limits_.prefill =
        spec::prefill_shape(between(1, 4), limits_.prompt_width, between(1, 2) * between(1, 300));
    limits_.decode_steps = between(1, 8);
    limits_.rows_in_powers = between(0, 1) == 1;
    CacheShape shape{limits_.rows, limits_.row_tokens, 0};
    shape.pages = shape.row_pages() * between(2, limits_.rows + 1) / 2;
    table_ = PageTable(shape);
    pages_.resize(static_cast<std::size_t>(shape.pages + 1));
    const std::int64_t n = between(1, 5);
    for (std::size_t prompt = 0; prompt < 12; ++prompt) {
      const std::int64_t tokens = between(1, limits_.prompt_width);
      for (std::int64_t k = 0; k < n; ++k) {
        sequences_.push_back({prompt, tokens, between(0, limits_.max_new_tokens)});
        lengths_.push_back(between(1, limits_.max_new_tokens));
      }
    }
    late_ = between(0, 1) == 1;
    added_.resize(sequences_.size());
  }
  void run() {
    schedule_.emplace(*GenerationSchedule::make(
        limits_, sequences_,
        {[this](std::int64_t row, const RowStart& start) { return begin(row, start); },
         [this](std::int64_t row, std::int64_t tokens) { return table_.grow(row, tokens); }}));
    for (;;) {
      const Result<const GenerationAction*> action = schedule_->next();
      ASSERT_TRUE(action.ok()) << action.status().message();
      if (*action == nullptr) break;
      std::visit([this](const auto& a) { execute(a); }, **action);
      if (::testing::Test::HasFailure()) return;
    }
    take(unread_);
    EXPECT_EQ(schedule_->ended(), sequences_.size());
    EXPECT_EQ(table_.free_pages() + 1, std::ssize(pages_));
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      EXPECT_EQ(added_[i], std::min(lengths_[i], most_of(i)));
  }
  [[nodiscard]] std::int64_t requests() const { return std::ssize(sequences_); }
  std::int64_t waited = 0, resumed = 0, late = 0;

 private:
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  [[nodiscard]] std::int64_t most_of(std::size_t sequence) const {
    const std::int64_t own = sequences_[sequence].max_new_tokens;
    return own == 0 ? limits_.max_new_tokens : own;
  }
  /// A token's number in the cache. Sequences of a prompt share those of its tokens.
  [[nodiscard]] std::int64_t token(std::size_t sequence, std::int64_t position) const {
    const SequenceStart& s = sequences_[sequence];
    const std::size_t text = position < s.prompt_tokens ? s.prompt : 1000 + sequence;
    return static_cast<std::int64_t>(text) * 1000 + position;
  }
  [[nodiscard]] std::int64_t& stored(std::int64_t page, std::int64_t position) {
    return pages_[static_cast<std::size_t>(page)][static_cast<std::size_t>(position % kPageTokens)];
  }
  std::optional<std::int64_t> begin(std::int64_t row, const RowStart& start) {
    const std::optional<std::int64_t> out = table_.start(row, start);
    if (!out) ++waited;
    return out;
  }
  // Prefills tokens [first, last) of a row, and `padding` more.
  void prefill(const std::vector<std::int64_t>& rows, std::int64_t first, std::int64_t last,
               std::int64_t padding) {
    const std::int64_t row = rows[0];
    const std::size_t sequence = schedule_->sequence_of(row);
    for (std::int64_t at = first; at < last + padding; ++at)
      stored(table_.written_page(row, at / kPageTokens), at) = at < last ? token(sequence, at) : -1;
    for (std::size_t i = 1; i < rows.size(); ++i)
      pages_[static_cast<std::size_t>(table_.last_prompt_page(rows[i]))] =
          pages_[static_cast<std::size_t>(table_.last_prompt_page(row))];
    expect_stored(row, last);
  }
  void expect_stored(std::int64_t row, std::int64_t count) {
    const std::size_t sequence = schedule_->sequence_of(row);
    for (std::int64_t at = 0; at < count; ++at) {
      const std::int64_t page = table_.page(row, at / kPageTokens);
      ASSERT_GT(page, 0) << "token " << at << " of sequence " << sequence;
      ASSERT_EQ(stored(page, at), token(sequence, at)) << "of sequence " << sequence;
    }
  }
  // Tokens are taken now, or after the next action that makes some.
  void make(const std::vector<std::int64_t>& rows, std::int64_t count) {
    std::vector<std::size_t> made;
    for (std::int64_t i = 0; i < count; ++i)
      for (const std::int64_t row : rows) made.push_back(schedule_->sequence_of(row));
    take(late_ ? std::exchange(unread_, made) : made);
  }
  void take(const std::vector<std::size_t>& sequences) {
    for (const std::size_t s : sequences)
      if (!schedule_->has_ended(s)) (void)schedule_->add_token(s, ++added_[s] == lengths_[s]);
  }

  void execute(const ClearCache&) {}
  void execute(const PrefillPrompts& action) {
    for (const std::vector<std::int64_t>& rows : action.rows_by_prompt()) {
      const std::int64_t tokens = schedule_->position(rows[0]) + 1;
      prefill(rows, 0, tokens, action.width - tokens);
    }
    make(action.rows, 1);
  }
  void execute(const PrefillChunk& action) {
    const std::int64_t row = action.rows[0], tokens = schedule_->position(row) + 1;
    const bool resumes = schedule_->new_tokens(row) > 0;
    const bool starts = !std::exchange(in_chunks_, !action.last);
    EXPECT_LE(action.first + action.count, tokens);
    if (starts && action.first > 0 && !resumes) {
      ++late;
      EXPECT_LE(tokens - action.first, kPageTokens);
    }
    if (starts && resumes) ++resumed;
    prefill(action.rows, action.first, action.first + action.count, 0);
    if (action.last) make(action.rows, 1);
  }
  void execute(const DecodeStep& action) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < action.rows; ++row) {
      if (schedule_->sequence_of(row) == GenerationSchedule::kIdle) continue;
      rows.push_back(row);
      const std::int64_t last = schedule_->position(row);
      for (std::int64_t at = last; at < last + action.steps; ++at)
        stored(table_.page(row, at / kPageTokens), at) = token(schedule_->sequence_of(row), at);
    }
    for (const std::int64_t row : rows) expect_stored(row, schedule_->position(row) + action.steps);
    make(rows, action.steps);
  }
  void execute(const ReadTokens&) { take(std::exchange(unread_, {})); }
  void execute(const MoveRow& action) { table_.move(action.from, action.to); }
  void execute(const EndRow& action) { table_.end(action.row); }

  std::mt19937_64 random_;
  GenerationLimits limits_;
  PageTable table_;
  std::vector<std::array<std::int64_t, kPageTokens>> pages_;
  std::vector<SequenceStart> sequences_;
  std::vector<std::int64_t> lengths_, added_;  // of the responses
  bool late_ = false, in_chunks_ = false;
  std::vector<std::size_t> unread_;
  std::optional<GenerationSchedule> schedule_;
};

TEST(PagedSchedule, EveryTokenIsInItsPage) {
  std::int64_t requests = 0, waited = 0, resumed = 0, late = 0;
  for (std::uint64_t seed = 1; requests < 100000; ++seed) {
    SCOPED_TRACE(seed);
    PagedRollout rollout(seed);
    rollout.run();
    if (HasFailure()) return;
    requests += rollout.requests();
    waited += rollout.waited;
    resumed += rollout.resumed;
    late += rollout.late;
  }
  EXPECT_GT(waited, 1000);
  EXPECT_GT(resumed, 1000);
  EXPECT_GT(late, 1000) << "sequences that start while others have their prompt's pages";
}

}  // namespace
}  // namespace neap::step

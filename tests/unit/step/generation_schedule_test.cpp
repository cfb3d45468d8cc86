#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "step/attention/decoding.h"
#include "step/generation/generation_schedule.h"

namespace neap::step {
namespace {

// Executes a schedule as a cache with few tokens would, whose rows reserve what sequences need, or
// grow. Checks every action against what it knows of the sequences.
class Execution {
 public:
  explicit Execution(std::uint64_t seed) : random_(seed) {
    limits_.rows = between(1, 6);
    limits_.prompt_width = between(1, 9);
    limits_.max_new_tokens = between(1, 7);
    limits_.row_tokens = limits_.prompt_width + limits_.max_new_tokens + between(0, 2);
    limits_.prefill = spec::prefill_shape(between(1, 3), limits_.prompt_width, between(1, 20));
    room_ = between(1, limits_.rows) * limits_.row_tokens;
    const std::int64_t n = between(1, 3);
    for (std::size_t prompt = 0; prompt < 8; ++prompt) {
      const std::int64_t tokens = between(1, limits_.prompt_width);
      for (std::int64_t k = 0; k < n; ++k) {
        sequences_.push_back({prompt, tokens, between(0, limits_.max_new_tokens)});
        lengths_.push_back(between(1, most_of(sequences_.size() - 1)));
      }
    }
    limits_.decode_steps = between(1, 5);
    limits_.rows_in_powers = between(0, 1) == 1;
    grows_ = between(0, 1) == 1;
    late_ = between(0, 1) == 1;
    shares_ = between(0, 1) == 1;
    added_.resize(sequences_.size());
  }
  void run() {
    schedule_.emplace(*GenerationSchedule::make(
        limits_, sequences_,
        {[this](std::int64_t row, const RowStart& start) { return begin(row, start); },
         [this](std::int64_t row, std::int64_t tokens) { return grow(rows_.at(row), tokens); }}));
    while (const GenerationAction* action = *schedule_->next())
      std::visit([this](const auto& a) { execute(a); }, *action);
    add(unread_);
    EXPECT_EQ(added_, lengths_);
    EXPECT_EQ(next_, sequences_.size());
    EXPECT_EQ(schedule_->ended(), sequences_.size());
    EXPECT_TRUE(rows_.empty());
    EXPECT_TRUE(paused_.empty());
  }
  std::int64_t moves = 0, refills = 0, reads_of_several = 0, dropped = 0, pauses = 0, shared = 0;

 private:
  static constexpr std::int64_t kPage = 3;  // tokens that rows share together
  struct Row {
    std::size_t sequence = 0;
    std::int64_t first = 0;  // tokens when it started
    std::int64_t reserved = 0;
    std::int64_t tokens = 0;  // that are stored, and the last one
  };
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  std::optional<std::int64_t> begin(std::int64_t at, const RowStart& start) {
    const bool resumes = !paused_.empty();
    const std::size_t sequence = resumes ? paused_.begin()->first : next_;
    EXPECT_EQ(start.prompt, sequences_[sequence].prompt);
    EXPECT_EQ(start.prompt_tokens, sequences_[sequence].prompt_tokens);
    Row row{sequence, resumes ? paused_.begin()->second : start.prompt_tokens};
    EXPECT_GT(start.tokens, row.first);
    const std::int64_t longest = start.prompt_tokens + most_of(sequence);
    EXPECT_LE(start.tokens, longest);
    const std::int64_t others = grows_ ? std::ssize(rows_) * limits_.decode_steps : 0;
    if ((grows_ ? start.tokens + others : longest) > room_) return std::nullopt;
    const bool stored = shares_ && std::any_of(rows_.begin(), rows_.end(), [&](const auto& other) {
                          return sequences_[other.second.sequence].prompt == start.prompt;
                        });
    const std::int64_t pages = stored ? start.prompt_tokens / kPage * kPage : 0;
    if (!first_) first_ = std::min(pages, row.first - 1);
    EXPECT_TRUE(grow(row, grows_ ? start.tokens : longest));
    EXPECT_TRUE(rows_.emplace(at, row).second) << "the row is taken";
    if (resumes)
      paused_.erase(paused_.begin());
    else
      ++next_;
    return pages;
  }
  bool grow(Row& row, std::int64_t tokens) {
    const std::int64_t more = std::max<std::int64_t>(0, tokens - row.reserved);
    if (more > room_) return false;
    room_ -= more;
    row.reserved += more;
    return true;
  }
  [[nodiscard]] std::int64_t prompt_tokens(const Row& row) const {
    return sequences_[row.sequence].prompt_tokens;
  }
  /// New tokens of a sequence.
  [[nodiscard]] std::int64_t most_of(std::size_t sequence) const {
    const std::int64_t own = sequences_[sequence].max_new_tokens;
    return own == 0 ? limits_.max_new_tokens : own;
  }
  [[nodiscard]] bool is_full(const Row& row) const {
    return row.tokens == prompt_tokens(row) + most_of(row.sequence);
  }
  // Makes so many tokens for each of the rows. They are added now, or after the next action that
  // makes tokens.
  void make_tokens(const std::vector<std::int64_t>& rows, std::int64_t count) {
    std::vector<std::size_t> made;
    for (std::int64_t i = 0; i < count; ++i)
      for (const std::int64_t row : rows) made.push_back(rows_.at(row).sequence);
    for (const std::int64_t at : rows) {
      Row& row = rows_.at(at);
      EXPECT_EQ(schedule_->sequence_of(at), row.sequence);
      EXPECT_EQ(schedule_->position(at), row.tokens - 1);
      EXPECT_EQ(schedule_->new_tokens(at), row.tokens - prompt_tokens(row));
      row.tokens += count;
      // A row's tokens stay within it, whenever its sequence ends.
      EXPECT_LE(row.tokens, prompt_tokens(row) + most_of(row.sequence));
      EXPECT_LE(row.tokens - 1, row.reserved);
    }
    add(late_ ? std::exchange(unread_, made) : made);
  }
  void add(const std::vector<std::size_t>& sequences) {
    for (const std::size_t sequence : sequences) {
      const std::int64_t length = lengths_[sequence];
      EXPECT_EQ(schedule_->has_ended(sequence), added_[sequence] == length);
      if (schedule_->has_ended(sequence)) {
        ++dropped;
        continue;
      }
      const bool ends = ++added_[sequence] == length;
      EXPECT_EQ(schedule_->add_token(sequence, ends && length < most_of(sequence)), ends);
    }
  }
  void start(const std::vector<std::int64_t>& rows) {
    if (decoded_) ++refills;
    for (const std::int64_t row : rows) rows_.at(row).tokens = rows_.at(row).first;
    make_tokens(rows, 1);
  }

  void execute(const ClearCache&) { EXPECT_EQ(next_, 0U); }
  void execute(const PrefillPrompts& action) {
    std::set<std::size_t> prompts;
    for (std::size_t i = 0; i < action.rows.size(); ++i) {
      const Row& row = rows_.at(action.rows[i]);
      EXPECT_EQ(action.lengths.at(static_cast<std::size_t>(action.prompts.at(i))),
                prompt_tokens(row));
      prompts.insert(sequences_[row.sequence].prompt);
    }
    EXPECT_EQ(prompts.size(), action.lengths.size());
    EXPECT_LE(std::ssize(prompts), limits_.prefill.prompts);
    EXPECT_EQ(std::exchange(first_, std::nullopt), 0) << "other rows have the prompt";
    start(action.rows);
  }
  void execute(const PrefillChunk& action) {
    const Row& started = rows_.at(action.rows.front());
    const std::int64_t length = started.first;
    const bool resumes = length > prompt_tokens(started);
    if (first_) chunked_ = *std::exchange(first_, std::nullopt);
    if (!resumes && chunked_ > 0 && chunked_ % limits_.prefill.tokens != 0) ++shared;
    EXPECT_EQ(action.first, chunked_);
    const std::int64_t most = resumes ? limits_.prefill.of_pass() : limits_.prefill.tokens;
    EXPECT_EQ(action.count, std::min(most, length - chunked_));
    chunked_ += action.count;
    std::set<std::size_t> prompts;
    for (const std::int64_t row : action.rows)
      prompts.insert(sequences_[rows_.at(row).sequence].prompt);
    EXPECT_EQ(prompts.size(), 1U);
    EXPECT_EQ(action.last, chunked_ == length);
    if (!action.last) return;
    chunked_ = 0;
    start(action.rows);
  }
  void execute(const DecodeStep& action) {
    decoded_ = true;
    std::int64_t longest = 0;
    for (const auto& [at, row] : rows_) longest = std::max(longest, row.tokens);
    const std::int64_t used = rows_.rbegin()->first + 1;
    EXPECT_EQ(action.rows, limits_.rows_in_powers ? decode_bucket(used, limits_.rows) : used);
    EXPECT_EQ(action.key_limit, longest);
    EXPECT_LT(used, 2 * std::ssize(rows_));
    EXPECT_GE(action.steps, 1);
    EXPECT_LE(action.steps, limits_.decode_steps);
    if (action.steps > 1) ++reads_of_several;
    std::vector<std::int64_t> rows;
    for (const auto& [at, row] : rows_) rows.push_back(at);
    make_tokens(rows, action.steps);
  }
  void execute(const ReadTokens&) { add(std::exchange(unread_, {})); }
  void execute(const MoveRow& action) {
    ++moves;
    EXPECT_EQ(action.tokens, rows_.at(action.from).tokens);
    EXPECT_LT(action.to, action.from);
    EXPECT_TRUE(rows_.emplace(action.to, rows_.at(action.from)).second);
    rows_.erase(action.from);
  }
  void execute(const EndRow& action) {
    const Row& row = rows_.at(action.row);
    room_ += row.reserved;
    if (!schedule_->has_ended(row.sequence) && !is_full(row)) {
      ++pauses;
      for (const auto& [at, other] : rows_) EXPECT_LE(other.sequence, row.sequence);
      EXPECT_EQ(added_[row.sequence], row.tokens - prompt_tokens(row));
      paused_.emplace(row.sequence, row.tokens);
    }
    rows_.erase(action.row);
  }

  std::mt19937_64 random_;
  GenerationLimits limits_;
  std::vector<SequenceStart> sequences_;
  std::vector<std::int64_t> lengths_;  // of the responses
  std::vector<std::int64_t> added_;    // tokens of the responses
  bool late_ = false;                  // tokens are added after the next action that makes some
  std::vector<std::size_t> unread_;
  std::int64_t room_ = 0;  // tokens that the cache has room for
  std::optional<GenerationSchedule> schedule_;
  std::map<std::int64_t, Row> rows_;
  bool grows_ = false;
  bool shares_ = false;                         // rows share the pages of their prompts
  std::optional<std::int64_t> first_;           // token that the next prefill computes
  std::size_t next_ = 0;                        // sequence that starts next
  std::map<std::size_t, std::int64_t> paused_;  // and their tokens
  std::int64_t chunked_ = 0;
  bool decoded_ = false;
};

CacheRows every_row() {
  return {[](std::int64_t, const RowStart&) { return std::optional<std::int64_t>(0); },
          [](std::int64_t, std::int64_t) { return true; }};
}

TEST(GenerationSchedule, GeneratesEverySequenceInWhateverRowsThereAre) {
  std::int64_t moves = 0, refills = 0, reads_of_several = 0, dropped = 0, pauses = 0, shared = 0;
  for (std::uint64_t seed = 1; seed <= 12000; ++seed) {
    SCOPED_TRACE(seed);
    Execution execution(seed);
    execution.run();
    if (HasFailure()) return;
    moves += execution.moves;
    refills += execution.refills;
    reads_of_several += execution.reads_of_several;
    dropped += execution.dropped;
    pauses += execution.pauses;
    shared += execution.shared;
  }
  EXPECT_GT(moves, 50);
  EXPECT_GT(refills, 100);  // sequences started as others ended
  EXPECT_GT(reads_of_several, 100);
  EXPECT_GT(dropped, 100);
  EXPECT_GT(pauses, 100);
  EXPECT_GT(shared, 100);
}

// The next prompts start before the host has read the last tokens of the sequences before them.
TEST(GenerationSchedule, FreesARowWithItsLastToken) {
  GenerationLimits limits{1, 8, 4, 4, {1, 8}};
  limits.decode_steps = 3;
  GenerationSchedule schedule = *GenerationSchedule::make(limits, {{0, 4}, {1, 4}}, every_row());
  std::vector<std::size_t> kinds;
  while (const GenerationAction* action = *schedule.next()) kinds.push_back(action->index());
  const auto kind = [](const GenerationAction& action) { return action.index(); };
  const std::size_t prefill = kind(PrefillPrompts{}), decode = kind(DecodeStep{}),
                    end = kind(EndRow{});
  EXPECT_EQ(kinds, (std::vector<std::size_t>{0, prefill, decode, end, prefill, decode, end}));
  EXPECT_EQ(schedule.ended(), 0U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(schedule.add_token(0, false), i == 3);
  EXPECT_TRUE(schedule.has_ended(0));
  EXPECT_EQ(*schedule.next(), nullptr) << "the row has ended before";
}

TEST(GenerationSchedule, DecodesRowsInPowersOfTwo) {
  const auto rows_of = [](std::int64_t rows, std::size_t sequences) {
    GenerationLimits limits{rows, 12, 4, 8, {8, 32}};
    limits.rows_in_powers = true;
    std::vector<SequenceStart> starts(sequences, {0, 4});
    GenerationSchedule schedule = *GenerationSchedule::make(limits, std::move(starts), every_row());
    for (;;) {
      const GenerationAction action = **schedule.next();
      if (const auto* const step = std::get_if<DecodeStep>(&action)) return step->rows;
      if (const auto* const prompts = std::get_if<PrefillPrompts>(&action))
        for (const std::int64_t row : prompts->rows)
          schedule.add_token(schedule.sequence_of(row), false);
    }
  };
  EXPECT_EQ(rows_of(8, 3), 4);
  EXPECT_EQ(rows_of(8, 8), 8);
  EXPECT_EQ(rows_of(6, 5), 6);
  EXPECT_EQ(rows_of(6, 20), 6);
  EXPECT_EQ(rows_of(8, 1), 1);
}

TEST(GenerationSchedule, RefusesWhatCannotStart) {
  const GenerationLimits limits{2, 12, 4, 8, {1, 4}};
  const CacheRows never{[](std::int64_t, const RowStart&) { return std::optional<std::int64_t>(); },
                        [](std::int64_t, std::int64_t) { return false; }};
  const auto code = [&](const GenerationLimits& l, std::int64_t tokens) {
    return GenerationSchedule::make(l, {{0, tokens}}, never).status().code();
  };
  EXPECT_EQ(code(limits, 4), ErrorCode::kOk);
  EXPECT_EQ(code(limits, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(limits, 5), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({2, 11, 4, 8, {1, 4}}, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({2, 12, 4, 8, {0, 4}}, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({2, 12, 4, 8, {1, 4}, 0}, 4), ErrorCode::kInvalidArgument);
  GenerationSchedule schedule = *GenerationSchedule::make(limits, {{0, 4}}, never);
  EXPECT_TRUE(std::holds_alternative<ClearCache>(**schedule.next()));
  EXPECT_EQ(schedule.next().status().code(), ErrorCode::kDoesNotFit);
  GenerationSchedule empty = *GenerationSchedule::make(limits, {}, never);
  EXPECT_EQ(*empty.next(), nullptr);
}

}  // namespace
}  // namespace neap::step

// JSONL files as rows, and the order in which a run visits them.
//
// Threads   values.   Failure   Error with file:line.   Cost   files are read whole, at most 4 GiB
// each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace neap::train {

/// One row's wanted fields and where it stands.
struct TextRow {
  /// Each a text, or a conversation: a list of messages with a text "role".
  std::vector<Json> fields;
  std::string where;  ///< "pairs.jsonl:12"
  Json row;           ///< all of it, if asked for
};

/// Whether `value` is a list of messages with a text "role".
[[nodiscard]] bool is_conversation(const Json& value);

/// The fields `keys` of every row of `files`, in order, then the fields `optional`, null where a row
/// lacks them; with `keep`, each row itself, too. Empty lines are skipped. A broken line, a missing
/// field, another type or an empty set of rows is an error.
[[nodiscard]] std::vector<TextRow> read_rows(const std::vector<std::filesystem::path>& files,
                                             const std::vector<std::string>& keys,
                                             const std::vector<std::string>& optional = {},
                                             bool keep = false);

/// Visits `rows` rows in batches, each epoch in an order drawn from the seed and the epoch, or as
/// they stand. The last rows of an epoch that fill no batch are left out of that epoch.
class BatchOrder {
 public:
  /// Fails when there are fewer rows than one batch.
  BatchOrder(std::size_t rows, std::size_t batch, bool shuffle, std::uint64_t seed);
  [[nodiscard]] std::int64_t steps_per_epoch() const;
  [[nodiscard]] std::int64_t epoch_of(std::int64_t step) const { return step / steps_per_epoch(); }
  /// Row numbers of step `step`, counted from 0 over all epochs.
  [[nodiscard]] std::vector<std::size_t> batch(std::int64_t step) const;

 private:
  std::size_t rows_, batch_;
  bool shuffle_;
  std::uint64_t seed_;
  mutable std::int64_t cached_epoch_ = -1;
  mutable std::vector<std::size_t> order_;
};

}  // namespace neap::train

// Rows of a data file, one at a time, as JSON texts.
//
// The content decides the format, not the name: JSONL, plain or compressed by gzip or zstd, or
// Parquet. Empty lines are skipped.
//
// Threads   one at a time.
//
// Failure   a Status with the file and the row. kCorrupt for broken or truncated compression, a
//           decompression bomb, or a row over read_limits::kRow. Also the failures of parquet_source.h.
//
// Memory    the largest row and 6 MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace neap::data {

struct RawRow {
  std::string_view text;     ///< valid until the next row is read
  std::uint64_t number = 0;  ///< of its line, or of its row in a Parquet file; counted from 1
};

class RowSource {
 public:
  [[nodiscard]] static Result<std::unique_ptr<RowSource>> open(const std::filesystem::path& file);
  virtual ~RowSource() = default;
  /// Reads the next row. False at the end.
  [[nodiscard]] virtual Result<bool> next(RawRow& row) = 0;
  /// Place of a row for messages: "a.jsonl:12".
  [[nodiscard]] virtual std::string where(std::uint64_t number) const = 0;
  /// Number of rows read.
  [[nodiscard]] virtual std::uint64_t position() const = 0;
  /// Whether rows are larger than their bytes in the file.
  [[nodiscard]] virtual bool packed() const = 0;
  /// Fraction of the file that was read; 0 if unknown.
  [[nodiscard]] virtual double progress() const = 0;
};

/// Data files are user input, as is the configuration that names their fields: turns kCorrupt into
/// kInvalidArgument.
[[nodiscard]] Status wrong_input(const Status& status);

}  // namespace neap::data

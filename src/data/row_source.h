// Rows of a data file, one after the other, as the JSON text of each.
//
// What a file is says its content, not its name: JSONL, plain or packed by gzip or zstd, or Parquet.
// Empty lines are no rows.
//
// Threads   one at a time.
// Failure   Status naming the file and the row, kCorrupt: a packing that is broken, cut short or a
//           decompression bomb, a row over kMostRowBytes, and what parquet_source.h says.
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

constexpr Bytes kMostRowBytes = 64_MiB;

struct RawRow {
  std::string_view text;     ///< valid until the next row is read
  std::uint64_t number = 0;  ///< of its line, or of its row in a Parquet file; from 1
};

class RowSource {
 public:
  [[nodiscard]] static Result<std::unique_ptr<RowSource>> open(const std::filesystem::path& file);
  virtual ~RowSource() = default;
  /// False at the end.
  [[nodiscard]] virtual Result<bool> next(RawRow& row) = 0;
  /// "a.jsonl:12"
  [[nodiscard]] virtual std::string where(std::uint64_t number) const = 0;
  /// Rows that were read.
  [[nodiscard]] virtual std::uint64_t position() const = 0;
  /// Whether rows are larger than the bytes that they come from.
  [[nodiscard]] virtual bool packed() const = 0;
  /// How much of the file was read, of 1; 0 where that is unknown.
  [[nodiscard]] virtual double progress() const = 0;
};

/// What a data file holds is the user's input, as the configuration that names its fields: kCorrupt
/// becomes kInvalidArgument.
[[nodiscard]] Status wrong_input(const Status& status);

}  // namespace neap::data

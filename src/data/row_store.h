// Rows of bytes by number, in memory or in a file.
//
//   header   "NEAPROWS", version (u32), 0 (u32)
//   rows     one after the other
//   index    for each row where it ends, from the first row's start (u64), and the row's hash (u64)
//   notes    JSON text
//   footer   rows, where index and notes start, size of the notes (u64 each), key (32 bytes), hash of
//            index, notes and what of the footer stands before it (32 bytes), "NEAPROWE"
// All integers are little-endian. The host is.
//
// Threads   RowStore: any. A writer: one.
// Failure   Status with the path; kCorrupt for a row that is not what was written. An unfinished writer
//           leaves no file.
// Cost      a row of a file is two reads of it, mostly from the page cache; nothing of it stays in
//           the process. A writer holds 16 bytes a row and 1 MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"

namespace neap::data {

/// An entry of a file's index.
struct RowEnd {
  std::uint64_t end = 0, hash = 0;
};

class RowStore {
 public:
  struct Backing;
  RowStore() = default;  ///< without rows
  explicit RowStore(std::shared_ptr<const Backing> backing) : backing_(std::move(backing)) {}
  /// A file that RowFileWriter made under the same key; kNotFound, or kCorrupt for another.
  [[nodiscard]] static Result<RowStore> open(const std::filesystem::path& file,
                                             std::string_view key);

  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] Result<std::string> row(std::uint64_t number) const;
  /// What the writer left with the rows.
  [[nodiscard]] const Json& notes() const;
  /// Host memory that the rows take.
  [[nodiscard]] Bytes memory() const;

 private:
  std::shared_ptr<const Backing> backing_;
};

class RowWriter {
 public:
  virtual ~RowWriter() = default;
  [[nodiscard]] virtual Status append(std::string_view row) = 0;
  /// Makes the rows a store; nothing is appended after it.
  [[nodiscard]] virtual Result<RowStore> finish(const Json& notes) = 0;
};

class MemoryRowWriter final : public RowWriter {
 public:
  /// kOutOfHostMemory where rows and index are over `most`.
  explicit MemoryRowWriter(Bytes most) : most_(most) {}
  [[nodiscard]] Status append(std::string_view row) override;
  [[nodiscard]] Result<RowStore> finish(const Json& notes) override;

 private:
  Bytes most_;
  std::string bytes_;
  std::vector<std::uint64_t> ends_;
};

class RowFileWriter final : public RowWriter {
 public:
  /// `file` appears when it is finished; until then a temporary file is written.
  [[nodiscard]] static Result<std::unique_ptr<RowFileWriter>> create(std::filesystem::path file,
                                                                     std::string key);
  [[nodiscard]] Status append(std::string_view row) override;
  [[nodiscard]] Result<RowStore> finish(const Json& notes) override;

 private:
  RowFileWriter(std::filesystem::path file, std::string key, TemporaryFile temporary);
  [[nodiscard]] Status put(std::string_view bytes);
  [[nodiscard]] Status flush();
  [[nodiscard]] Status failure(std::string_view verb, int error) const;
  std::filesystem::path file_;
  std::string key_;
  TemporaryFile temporary_;
  std::string buffer_;
  std::vector<RowEnd> index_;
  std::uint64_t written_ = 0;
};

}  // namespace neap::data

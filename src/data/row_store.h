// Rows of bytes by number, in memory or in a file.
//
//   header   "NEAPROWS", version (u32), 0 (u32)
//   rows     concatenated
//   index    for each row its end, relative to the first row (u64), and its hash (u64)
//   notes    JSON text
//   footer   number of rows, offsets of index and notes, size of the notes (u64 each), key (32 bytes),
//            hash of index, notes and the footer so far (32 bytes), "NEAPROWE"
//
// All integers are little-endian, as on the host.
//
// Threads   RowStore: any. A writer: one.
// Failure   Status with the path; kCorrupt for a row that differs from what was written. An unfinished writer
//           leaves no file.
// Cost      a row of a file takes two reads, mostly from the page cache, and no memory of the process. A
//           writer holds 16 bytes per row and 1 MiB.
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
  RowStore() = default;  ///< an empty store
  explicit RowStore(std::shared_ptr<const Backing> backing) : backing_(std::move(backing)) {}
  /// Opens a file that RowFileWriter made under the same key. kNotFound if it is missing, kCorrupt
  /// if it has another key.
  [[nodiscard]] static Result<RowStore> open(const std::filesystem::path& file,
                                             std::string_view key);

  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] Result<std::string> row(std::uint64_t number) const;
  /// Notes that the writer stored with the rows.
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
  /// Turns the rows into a store. Nothing may be appended afterwards.
  [[nodiscard]] virtual Result<RowStore> finish(const Json& notes) = 0;
};

class MemoryRowWriter final : public RowWriter {
 public:
  /// kOutOfHostMemory if rows and index exceed `most`.
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
  /// `file` appears when it is finished. A temporary file is written before.
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

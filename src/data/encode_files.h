// Encodes data files into rows for training. Each file is read once from front to back and encoded
// by several threads. The rows stay in memory; a large file's rows go to the cache (row_cache.h).
//
// Threads   one at a time; several threads call the encoder.
//
// Failure   wrong_input() of the first failing row, and the failures of row_source.h and
//           row_cache.h. kBusy if a file changes while it is read.
//
// Memory    `Options::memory`; for a large file 4 bytes per row while it is encoded and nothing
//           afterwards. In addition the largest row and about 4 MiB per thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/row_source.h"
#include "data/row_store.h"

namespace neap::data {

/// The encoding of one row: any number of rows, and the reasons why others are missing or cut.
struct EncodedRows {
  std::vector<std::string> rows;
  std::map<std::string, std::uint64_t> counts;
  std::map<std::string, std::uint64_t> maxima{};  ///< maximum over all rows, by name
  std::map<std::string, std::string> firsts{};    ///< value of the first row that has one, by name
};
using RowEncoder =
    std::function<Status(const RawRow& row, const std::string& where, EncodedRows& out)>;

struct EncodeOptions {
  std::filesystem::path cache_folder;  ///< empty: the user's cache folder
  Bytes cache_limit{};                 ///< limit of all rows in that folder; 0: none
  Bytes memory;                        ///< limit of one file's encoded rows in memory
  std::size_t threads = 1;
  /// Everything that the encoded rows depend on except the file.
  std::string recipe;
  bool show_progress = false;  ///< for large files
};

/// The store's notes contain the sums of `EncodedRows::counts`, the maxima and firsts, and the hash
/// of the file's contents.
[[nodiscard]] Result<RowStore> encode_file(const std::filesystem::path& file,
                                           const RowEncoder& encode, const EncodeOptions& options);

/// Rows of several files with consecutive numbers.
class FileRows {
 public:
  /// Adds the encoded rows of the file `source`.
  void add(RowStore file, std::string source);
  [[nodiscard]] std::size_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] Result<std::string> row(std::size_t number) const;
  /// Place of a row for messages: "row 12 of SOURCE". It counts from 0 and skips rows that were
  /// left out.
  [[nodiscard]] std::string where(std::size_t number) const;
  [[nodiscard]] std::vector<std::size_t> sizes() const;  ///< rows of each file
  /// A hash of each file's contents; empty for a pipe.
  [[nodiscard]] std::vector<std::string> contents() const;
  /// Sum of EncodedRows::counts of `name` over the files.
  [[nodiscard]] std::uint64_t count(const std::string& name) const;
  [[nodiscard]] Bytes memory() const;

 private:
  struct Place {
    const RowStore* file = nullptr;  // null: the number is too large
    const std::string* source = nullptr;
    std::size_t row = 0;
  };
  [[nodiscard]] Place place(std::size_t number) const;
  std::vector<RowStore> files_;
  std::vector<std::string> sources_;
  std::vector<std::size_t> ends_;
};

}  // namespace neap::data

// Data files as rows that training takes: each is read once from front to back, encoded by several
// threads, and kept in memory or, where it is large, in the cache (row_cache.h).
//
// Threads   one at a time; the encoder is called by several.
// Failure   that of the first row that fails, and what row_source.h and row_cache.h say, as
//           wrong_input(); kBusy where a file changes while it is read.
// Memory    `Options::memory`, or 4 bytes a row while a large file is encoded and none afterwards;
//           with it the largest row and some 4 MiB a thread.
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

/// What a row became: any number of rows, and why others are missing or cut.
struct EncodedRows {
  std::vector<std::string> rows;
  std::map<std::string, std::uint64_t> counts;
  std::map<std::string, std::uint64_t> maxima{};  ///< of all rows
  std::map<std::string, std::string> firsts{};    ///< of the first row that has one
};
using RowEncoder =
    std::function<Status(const RawRow& row, const std::string& where, EncodedRows& out)>;

struct EncodeOptions {
  std::filesystem::path cache_folder;  ///< empty: the user's
  Bytes cache_limit{};                 ///< of all rows in that folder; 0: none
  Bytes memory;                        ///< encoded rows of a file that are kept in memory at most
  std::size_t threads = 1;
  /// Everything besides the file that the encoded rows depend on.
  std::string recipe;
  bool show_progress = false;  ///< of large files
};

/// The store's notes are the sums of `EncodedRows::counts`, the maxima and firsts, and the hash of the file's contents.
[[nodiscard]] Result<RowStore> encode_file(const std::filesystem::path& file,
                                           const RowEncoder& encode, const EncodeOptions& options);

/// Rows of several files, numbered through.
class FileRows {
 public:
  /// The encoded rows of the file `source`.
  void add(RowStore file, std::string source);
  [[nodiscard]] std::size_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] Result<std::string> row(std::size_t number) const;
  /// "row 12 of SOURCE", for messages: from 0, without rows that were left out.
  [[nodiscard]] std::string where(std::size_t number) const;
  [[nodiscard]] std::vector<std::size_t> sizes() const;  ///< of each file
  /// A hash of each file's contents; empty where they came out of a pipe.
  [[nodiscard]] std::vector<std::string> contents() const;
  /// The files' EncodedRows::counts of `name`.
  [[nodiscard]] std::uint64_t count(const std::string& name) const;
  [[nodiscard]] Bytes memory() const;

 private:
  struct Place {
    const RowStore* file = nullptr;  // none: the number is too high
    const std::string* source = nullptr;
    std::size_t row = 0;
  };
  [[nodiscard]] Place place(std::size_t number) const;
  std::vector<RowStore> files_;
  std::vector<std::string> sources_;
  std::vector<std::size_t> ends_;
};

}  // namespace neap::data

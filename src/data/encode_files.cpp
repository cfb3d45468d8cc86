#include "data/encode_files.h"

#include <algorithm>
#include <optional>

#include "base/format.h"
#include "base/json.h"
#include "base/parallel_for.h"
#include "base/progress.h"
#include "data/content_hash.h"
#include "data/row_cache.h"

namespace neap::data {
namespace fs = std::filesystem;
namespace {

// Large enough that the cost of creating threads is negligible.
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;  // per thread
constexpr std::size_t kMostThreads = 64;
constexpr std::size_t kPartBytes = std::size_t{1} << 18;
constexpr const char* kContents = "contents";  // name of the file's hash in a store's notes
// Estimated bytes of text per compressed byte. A low estimate only costs time.
constexpr std::uint64_t kPackedTimes = 4;

// Raw rows, concatenated in one text.
class Block {
 public:
  void add(const RawRow& row) {
    rows_.push_back({text_.size(), row.text.size(), row.number});
    text_ += row.text;
  }
  void clear() {
    text_.clear();
    rows_.clear();
  }
  [[nodiscard]] std::size_t bytes() const { return text_.size(); }
  [[nodiscard]] std::size_t size() const { return rows_.size(); }
  [[nodiscard]] RawRow operator[](std::size_t i) const {
    const Place& place = rows_[i];
    return {std::string_view(text_).substr(place.first, place.size), place.number};
  }

 private:
  struct Place {
    std::size_t first, size;
    std::uint64_t number;
  };
  std::string text_;
  std::vector<Place> rows_;
};

struct Part {
  std::size_t first = 0, end = 0;
  EncodedRows out;
  Status status;
};

// Divides the block into parts of about kPartBytes.
std::vector<Part> divide(const Block& block) {
  std::vector<Part> parts;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (parts.empty() || bytes >= kPartBytes) {
      parts.push_back({i, i, {}, {}});
      bytes = 0;
    }
    bytes += block[i].text.size();
    parts.back().end = i + 1;
  }
  return parts;
}

class Encoding {
 public:
  Encoding(RowSource& source, const RowEncoder& encode, std::size_t threads, RowWriter& writer)
      : source_(source),
        encode_(encode),
        threads_(std::clamp<std::size_t>(threads, 1, kMostThreads)),
        writer_(writer) {}

  void show_progress(std::string title) { progress_.emplace(std::move(title), 100, "%"); }

  /// Calls `unchanged` before the rows are accepted as those of the file, whose contents have this
  /// hash.
  Result<RowStore> run(const std::function<Status()>& unchanged, const std::string& contents) {
    const Status status = encode_all();
    NEAP_TRY(unchanged());  // its message is clearer than that of a half-written row
    NEAP_TRY(status);
    Json notes = {{kContents, contents}};
    for (const auto& [what, count] : counts_) notes[what] = count;
    for (const auto& [what, value] : maxima_) notes[what] = value;
    for (const auto& [what, text] : firsts_) notes[what] = text;
    return writer_.finish(notes);
  }

 private:
  Status encode_all() {
    for (bool more = true; more;) {
      Result<bool> filled = fill();
      // Encode rows before the damage first, so that their errors are reported first.
      NEAP_TRY(encode_block());
      NEAP_TRY(filled.status());
      more = *filled;
      if (progress_) progress_->update(static_cast<std::uint64_t>(100 * source_.progress()));
    }
    return {};
  }

  /// False at the end of the source.
  Result<bool> fill() {
    block_.clear();
    RawRow row;
    while (block_.bytes() < kBlockBytes * threads_) {
      NEAP_TRY_ASSIGN(const bool more, source_.next(row));
      if (!more) return false;
      block_.add(row);
    }
    return true;
  }

  Status encode_block() {
    std::vector<Part> parts = divide(block_);
    parallel_for(parts.size(), threads_, [&](std::size_t p) {
      Part& part = parts[p];
      for (std::size_t i = part.first; i < part.end && part.status.ok(); ++i) {
        const RawRow row = block_[i];
        part.status = encode_(row, source_.where(row.number), part.out);
      }
    });
    for (const Part& part : parts) {
      NEAP_TRY(part.status);
      for (const std::string& row : part.out.rows) NEAP_TRY(writer_.append(row));
      for (const auto& [what, count] : part.out.counts) counts_[what] += count;
      for (const auto& [what, value] : part.out.maxima)
        maxima_[what] = std::max(maxima_[what], value);
      firsts_.insert(part.out.firsts.begin(), part.out.firsts.end());  // the first entry stays
    }
    return {};
  }

  RowSource& source_;
  const RowEncoder& encode_;
  std::size_t threads_;
  RowWriter& writer_;
  std::optional<Progress> progress_;
  Block block_;
  std::map<std::string, std::uint64_t> counts_, maxima_;
  std::map<std::string, std::string> firsts_;
};

Result<RowStore> encode_rows(const fs::path& file, const RowEncoder& encode,
                             const EncodeOptions& options) {
  std::error_code error;
  const bool regular = fs::is_regular_file(file, error);
  FileVersion before;
  if (regular) {
    NEAP_TRY_ASSIGN(before, version_of(file));
  }
  const auto unchanged = [&] { return regular ? check_unchanged(file, before) : ok_status(); };
  NEAP_TRY_ASSIGN(auto source, RowSource::open(file));
  const std::uint64_t size = regular ? fs::file_size(file, error) : 0;
  if (Bytes(size * (source->packed() ? kPackedTimes : 1)) <= options.memory) {
    // A pipe can be read only once, so its rows stay in memory.
    MemoryRowWriter writer(regular ? options.memory : Bytes(UINT64_MAX));
    std::string contents;
    if (regular) {
      NEAP_TRY_ASSIGN(contents, hash_of_file(file));
    }
    Result<RowStore> rows =
        Encoding(*source, encode, options.threads, writer).run(unchanged, contents);
    if (rows.ok() || rows.status().code() != ErrorCode::kOutOfHostMemory) return rows;
    NEAP_TRY_ASSIGN(source, RowSource::open(file));
  }
  NEAP_TRY_ASSIGN(const fs::path folder, make_cache_folder(options.cache_folder));
  NEAP_TRY_ASSIGN(const std::string contents, content_hash(folder, file));
  return cached_rows(folder, hash_of(contents + options.recipe), options.cache_limit,
                     [&](RowWriter& writer) {
                       Encoding encoding(*source, encode, options.threads, writer);
                       if (options.show_progress)
                         encoding.show_progress("encoding " + file.filename().string());
                       return encoding.run(unchanged, contents);
                     });
}

}  // namespace

Result<RowStore> encode_file(const fs::path& file, const RowEncoder& encode,
                             const EncodeOptions& options) {
  Result<RowStore> rows = encode_rows(file, encode, options);
  if (!rows.ok()) return wrong_input(rows.status());
  return rows;
}

void FileRows::add(RowStore file, std::string source) {
  ends_.push_back(size() + file.size());
  sources_.push_back(std::move(source));
  files_.push_back(std::move(file));
}

FileRows::Place FileRows::place(std::size_t number) const {
  const auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), number) -
                                             ends_.begin());
  if (file == files_.size()) return {};
  return {&files_[file], &sources_[file], number - (file == 0 ? 0 : ends_[file - 1])};
}

Result<std::string> FileRows::row(std::size_t number) const {
  const Place at = place(number);
  if (at.file == nullptr)
    return Status(ErrorCode::kInternal, format("There is no row {} of {}", number, size()));
  return at.file->row(at.row);
}

std::string FileRows::where(std::size_t number) const {
  const Place at = place(number);
  return format("row {} of {}", at.row, at.source == nullptr ? "no file" : *at.source);
}

std::vector<std::string> FileRows::contents() const {
  std::vector<std::string> out;
  for (const RowStore& file : files_) out.push_back(file.notes().value(kContents, std::string()));
  return out;
}

std::vector<std::size_t> FileRows::sizes() const {
  std::vector<std::size_t> out;
  for (const RowStore& file : files_) out.push_back(file.size());
  return out;
}

std::uint64_t FileRows::count(const std::string& name) const {
  std::uint64_t sum = 0;
  for (const RowStore& file : files_) sum += file.notes().value(name, std::uint64_t{0});
  return sum;
}

Bytes FileRows::memory() const {
  Bytes sum(0);
  for (const RowStore& file : files_) sum = sum + file.memory();
  return sum;
}

}  // namespace neap::data

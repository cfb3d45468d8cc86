#include "data/row_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/open_file.h"

namespace neap::data {

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::string_view kMagic = "NEAPROWS", kEnd = "NEAPROWE";
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kWindow = std::size_t{1} << 20;

struct Header {
  std::array<char, 8> magic{};
  std::uint32_t version = kVersion, reserved = 0;
};
static_assert(sizeof(Header) == 16);

struct Footer {
  std::uint64_t rows = 0, index_at = 0, notes_at = 0, notes_size = 0;
  std::array<char, kHashDigits> key{};
  std::array<char, kHashDigits> hash{};
  std::array<char, 8> magic{};
};
static_assert(sizeof(Footer) == 104);
static_assert(sizeof(RowEnd) == 16);

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <std::size_t N>
void set(std::array<char, N>& field, std::string_view text) {
  std::copy_n(text.data(), std::min(N, text.size()), field.data());
}

template <std::size_t N>
std::string_view view(const std::array<char, N>& field) {
  return {field.data(), N};
}

std::uint64_t hash_of_row(std::string_view row) {
  return hash64(std::as_bytes(std::span(row)));
}

Header make_header() {
  Header header;
  set(header.magic, kMagic);
  return header;
}

[[nodiscard]] bool read_at(int fd, std::uint64_t offset, char* to, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::pread(fd, to, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    offset += static_cast<std::uint64_t>(n);
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

// Has either bytes and ends, or a file.
struct RowStore::Backing {
  Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  ~Backing() {
    if (fd >= 0) ::close(fd);
  }
  [[nodiscard]] Status damaged(std::string_view what) const {
    return {ErrorCode::kCorrupt, format("{} {}", file.string(), what)};
  }
  [[nodiscard]] Status check(std::string_view key);
  [[nodiscard]] Status check_index(std::string& hash) const;

  std::string bytes;
  std::vector<std::uint64_t> ends;
  std::filesystem::path file;
  int fd = -1;
  Footer footer;
  Json notes;
};

// Checks that the index is ascending and ends where the index itself starts.
Status RowStore::Backing::check_index(std::string& hash) const {
  RunningHash running;
  std::vector<RowEnd> window(kWindow / sizeof(RowEnd));
  std::uint64_t before = 0;
  for (std::uint64_t at = 0; at < footer.rows; at += window.size()) {
    window.resize(std::min<std::uint64_t>(window.size(), footer.rows - at));
    const std::size_t size = window.size() * sizeof(RowEnd);
    if (!read_at(fd, footer.index_at + at * sizeof(RowEnd), reinterpret_cast<char*>(window.data()),
                 size))
      return damaged("cannot be read");
    for (const RowEnd& row : window) {
      if (row.end < before) return damaged("has a damaged index");
      before = row.end;
    }
    running.add({reinterpret_cast<const char*>(window.data()), size});
  }
  if (before != footer.index_at - sizeof(Header)) return damaged("has a damaged index");
  hash = running.text();
  return {};
}

Status RowStore::Backing::check(std::string_view key) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return damaged("cannot be read");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  Header header;
  if (size < sizeof header + sizeof footer ||
      !read_at(fd, 0, reinterpret_cast<char*>(&header), sizeof header) ||
      !read_at(fd, size - sizeof footer, reinterpret_cast<char*>(&footer), sizeof footer) ||
      view(header.magic) != kMagic || view(footer.magic) != kEnd)
    return damaged("is not a file of encoded rows");
  if (header.version != kVersion) return damaged("is of another version of Neap");
  const std::uint64_t last = size - sizeof footer;
  if (footer.index_at < sizeof header || footer.index_at > footer.notes_at ||
      footer.notes_at > last || footer.notes_size != last - footer.notes_at ||
      (footer.notes_at - footer.index_at) % sizeof(RowEnd) != 0 ||
      (footer.notes_at - footer.index_at) / sizeof(RowEnd) != footer.rows)
    return damaged("has a damaged end");
  std::string hash;
  NEAP_TRY(check_index(hash));
  std::string text(footer.notes_size, '\0');
  if (!read_at(fd, footer.notes_at, text.data(), text.size())) return damaged("cannot be read");
  const std::string_view head = bytes_of(footer).substr(0, offsetof(Footer, hash));
  if (view(footer.hash) != hash_of(hash + text + std::string(head)))
    return damaged("has a damaged index");
  if (view(footer.key) != key) return damaged("holds other rows");
  NEAP_TRY_ASSIGN(notes, parse_json(text, file.string()));
  return {};
}

Result<RowStore> RowStore::open(const std::filesystem::path& file, std::string_view key) {
  auto backing = std::make_shared<Backing>();
  backing->file = file;
  NEAP_TRY_ASSIGN(Descriptor opened, open_regular_file(file));
  backing->fd = opened.take();
  // The lock keeps bound_cache (row_cache.cpp) from removing an open file. A file system without
  // locks still keeps the contents of an open file.
  (void)::flock(backing->fd, LOCK_SH | LOCK_NB);
  NEAP_TRY(backing->check(key));
  return RowStore(std::move(backing));
}

std::uint64_t RowStore::size() const {
  if (backing_ == nullptr) return 0;
  return backing_->fd >= 0 ? backing_->footer.rows : backing_->ends.size();
}

Result<std::string> RowStore::row(std::uint64_t number) const {
  if (number >= size())
    return Status(ErrorCode::kInternal, format("There is no row {} of {}", number, size()));
  const Backing& b = *backing_;
  if (b.fd < 0) {
    const std::uint64_t first = number == 0 ? 0 : b.ends[number - 1];
    return b.bytes.substr(first, b.ends[number] - first);
  }
  std::array<RowEnd, 2> ends{};
  const std::size_t entries = number == 0 ? 1 : 2;
  char* const to = reinterpret_cast<char*>(&ends[2 - entries]);
  if (!read_at(b.fd, b.footer.index_at + (number + 1 - entries) * sizeof(RowEnd), to,
               entries * sizeof(RowEnd)))
    return b.damaged("cannot be read");
  // The index was checked when the file was opened. If the file has changed since then, this check
  // avoids a large allocation.
  if (ends[0].end > ends[1].end || ends[1].end > b.footer.index_at)
    return b.damaged("has a damaged index");
  std::string out(ends[1].end - ends[0].end, '\0');
  if (!read_at(b.fd, sizeof(Header) + ends[0].end, out.data(), out.size()))
    return b.damaged("cannot be read");
  if (hash_of_row(out) != ends[1].hash) {
    return b.damaged(
        format("is damaged at row {}. Remove it; the next run makes it again", number));
  }
  return out;
}

const Json& RowStore::notes() const {
  static const Json kNone = Json::object();
  return backing_ == nullptr ? kNone : backing_->notes;
}

Bytes RowStore::memory() const {
  if (backing_ == nullptr || backing_->fd >= 0) return Bytes(0);
  return Bytes(backing_->bytes.capacity() + backing_->ends.capacity() * sizeof(std::uint64_t));
}

Status MemoryRowWriter::append(std::string_view row) {
  const std::uint64_t need = bytes_.size() + row.size() + (ends_.size() + 1) * sizeof(ends_[0]);
  if (Bytes(need) > most_)
    return {ErrorCode::kOutOfHostMemory, format("The rows are over the limit of {}", most_)};
  bytes_ += row;
  ends_.push_back(bytes_.size());
  return {};
}

Result<RowStore> MemoryRowWriter::finish(const Json& notes) {
  auto backing = std::make_shared<RowStore::Backing>();
  bytes_.shrink_to_fit();
  ends_.shrink_to_fit();
  backing->bytes = std::move(bytes_);
  backing->ends = std::move(ends_);
  backing->notes = notes;
  return RowStore(std::move(backing));
}

RowFileWriter::RowFileWriter(std::filesystem::path file, std::string key, TemporaryFile temporary)
    : file_(std::move(file)), key_(std::move(key)), temporary_(std::move(temporary)) {}

Status RowFileWriter::failure(std::string_view verb, int error) const {
  return {ErrorCode::kIo,
          format("Cannot {} {}: {}; data.cache_dir names the folder of encoded rows", verb,
                 file_.string(), system_reason(error))};
}

Result<std::unique_ptr<RowFileWriter>> RowFileWriter::create(std::filesystem::path file,
                                                             std::string key) {
  Result<TemporaryFile> temporary = TemporaryFile::create(file);
  if (!temporary.ok()) {
    return Status(temporary.status().code(),
                  format("{}; data.cache_dir names the folder of encoded rows",
                         temporary.status().message()));
  }
  std::unique_ptr<RowFileWriter> out(
      new RowFileWriter(std::move(file), std::move(key), std::move(temporary).value()));
  NEAP_TRY(out->put(bytes_of(make_header())));
  return out;
}

Status RowFileWriter::flush() {
  for (std::string_view left = buffer_; !left.empty();) {
    const ssize_t n = ::write(temporary_.fd(), left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure("write", errno);
    left.remove_prefix(static_cast<std::size_t>(n));
  }
  written_ += buffer_.size();
  buffer_.clear();
  return {};
}

Status RowFileWriter::put(std::string_view bytes) {
  buffer_ += bytes;
  return buffer_.size() < kWindow ? ok_status() : flush();
}

Status RowFileWriter::append(std::string_view row) {
  if (row.size() > UINT32_MAX) return failure("write a row of 4 GiB to", EFBIG);
  const std::uint64_t before = index_.empty() ? 0 : index_.back().end;
  index_.push_back({before + row.size(), hash_of_row(row)});
  return put(row);
}

Result<RowStore> RowFileWriter::finish(const Json& notes) {
  Footer footer;
  footer.rows = index_.size();
  footer.index_at = written_ + buffer_.size();
  footer.notes_at = footer.index_at + footer.rows * sizeof(RowEnd);
  RunningHash running;
  for (const RowEnd& row : index_) {
    running.add(bytes_of(row));
    NEAP_TRY(put(bytes_of(row)));
  }
  const std::string text = json_text(notes);
  footer.notes_size = text.size();
  set(footer.key, key_);
  set(footer.magic, kEnd);
  const std::string_view head = bytes_of(footer).substr(0, offsetof(Footer, hash));
  set(footer.hash, hash_of(running.text() + text + std::string(head)));
  NEAP_TRY(put(text));
  NEAP_TRY(put(bytes_of(footer)));
  NEAP_TRY(flush());
  NEAP_TRY(temporary_.commit(/*sync=*/true));
  return RowStore::open(file_, key_);
}

}  // namespace neap::data

// Writing safetensors files piece by piece.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "model/safetensors_detail.h"

namespace neap::model {
namespace {

namespace fs = std::filesystem;
using detail::bytes_of;
using detail::io_error;
using detail::shown;

void write_at(int fd, const fs::path& path, std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
}

// Takes the space; a file system that cannot reserve it finds out while writing.
void reserve(int fd, const fs::path& path, std::uint64_t bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
    io_error("write", path, errno);
}

// Widest elements first, so that every tensor is aligned to its element.
std::vector<std::size_t> file_order(const fs::path& path, const std::vector<TensorInfo>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int bits_a = bits_of_dtype(tensors[a].dtype);
    const int bits_b = bits_of_dtype(tensors[b].dtype);
    return bits_a != bits_b ? bits_a > bits_b : tensors[a].name < tensors[b].name;
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::string& name = tensors[order[i]].name;
    const bool twice = i > 0 && name == tensors[order[i - 1]].name;
    if (twice || name == "__metadata__")
      throw Error(ErrorCode::kInvalidArgument,
                  format("{}: the name \"{}\" cannot be written{}", path.string(), shown(name),
                         twice ? " twice" : ""));
  }
  return order;
}

}  // namespace

namespace detail {

std::uint64_t bytes_of(const TensorInfo& t) {
  const auto bytes = bytes_by_shape(t.dtype, t.shape);
  if (!bytes)
    throw Error(ErrorCode::kInvalidArgument, format("Tensor \"{}\" cannot be written as {} {}",
                                                    shown(t.name), t.dtype, shape_text(t.shape)));
  return *bytes;
}

}  // namespace detail

struct SafetensorsWriter::State {
  State(fs::path where, Sync when)
      : path(std::move(where)), sync(when), file(value_or_throw(TemporaryFile::create(path))) {}

  [[nodiscard]] std::uint64_t hash_of_tensor(std::size_t tensor);

  fs::path path;
  Sync sync;
  TemporaryFile file;
  std::string header;  // with blank checksums
  std::uint64_t data_begin = 0;
  std::vector<TensorEntry> tensors;                       // as given
  std::unique_ptr<std::atomic<std::uint64_t>[]> missing;  // bytes not yet written, one a tensor
  // Hashes of the pieces of each tensor, and whether it was written in other pieces.
  std::vector<std::vector<std::uint64_t>> pieces;
  std::unique_ptr<std::atomic<bool>[]> other_pieces;
};

std::uint64_t SafetensorsWriter::State::hash_of_tensor(std::size_t tensor) {
  std::vector<std::uint64_t>& hashes = pieces[tensor];
  if (!other_pieces[tensor]) return detail::hash_of_pieces(hashes);
  const TensorEntry& entry = tensors[tensor];
  std::vector<std::byte> buffer(std::min(entry.bytes(), TensorCheck::kPiece));
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint64_t first = i * TensorCheck::kPiece;
    const std::span piece(buffer.data(), std::min(entry.bytes() - first, TensorCheck::kPiece));
    detail::read_exactly(file.fd(), path, data_begin + entry.begin + first, piece);
    hashes[i] = hash64(piece);
  }
  return detail::hash_of_pieces(hashes);
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     Sync sync) {
  std::map<std::string, std::string> all = metadata;
  all[std::string(detail::kChecksumsKey)] = detail::blank_checksums(tensors.size());
  std::string header = "{\"__metadata__\":" + nlohmann::json(all).dump() + ",";
  std::vector<TensorEntry> entries(tensors.size());
  std::uint64_t end = 0;
  for (const std::size_t i : file_order(path, tensors)) {
    TensorEntry& entry = entries[i];
    static_cast<TensorInfo&>(entry) = std::move(tensors[i]);
    entry.begin = end;
    entry.end = end += bytes_of(entry);
    header += nlohmann::json(entry.name).dump() + ":" +
              Json{{"dtype", entry.dtype},
                   {"shape", entry.shape},
                   {"data_offsets", {entry.begin, entry.end}}}
                  .dump() +
              ",";
  }
  if (header.back() == ',') header.pop_back();
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > SafetensorsFile::kMaxHeaderBytes)
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: {} tensors need a header of {} bytes; the most is {}", path.string(),
                       entries.size(), header.size(), SafetensorsFile::kMaxHeaderBytes));
  state_ = std::make_unique<State>(std::move(path), sync);
  state_->tensors = std::move(entries);
  state_->missing = std::make_unique<std::atomic<std::uint64_t>[]>(state_->tensors.size());
  state_->other_pieces = std::make_unique<std::atomic<bool>[]>(state_->tensors.size());
  for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
    const std::uint64_t bytes = state_->tensors[i].bytes();
    state_->missing[i] = bytes;
    state_->pieces.emplace_back(detail::pieces_of(bytes));
  }
  state_->data_begin = 8 + header.size();
  const int fd = state_->file.fd();
  reserve(fd, state_->path, state_->data_begin + end);
  std::string begin(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) begin[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  begin += header;
  write_at(fd, state_->path, 0, std::as_bytes(std::span(begin)));
  state_->header = std::move(header);
}

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const TensorEntry& entry = state_->tensors.at(tensor);
  if (offset > entry.bytes() || bytes.size() > entry.bytes() - offset ||
      state_->missing[tensor] < bytes.size())
    throw Error(ErrorCode::kInternal, format("{}: tensor \"{}\" was given more bytes than it has",
                                             state_->path.string(), shown(entry.name)));
  write_at(state_->file.fd(), state_->path, state_->data_begin + entry.begin + offset, bytes);
  const bool whole_piece = offset % TensorCheck::kPiece == 0 &&
                           bytes.size() == std::min(entry.bytes() - offset, TensorCheck::kPiece);
  if (!whole_piece) {
    state_->other_pieces[tensor] = true;
  } else if (!bytes.empty()) {
    state_->pieces[tensor][offset / TensorCheck::kPiece] = hash64(bytes);
  }
  state_->missing[tensor] -= bytes.size();
}

void SafetensorsWriter::commit() {
  for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
    if (state_->missing[i] != 0)
      throw Error(ErrorCode::kInternal,
                  format("{}: tensor \"{}\" was given {} bytes too few", state_->path.string(),
                         shown(state_->tensors[i].name), state_->missing[i].load()));
  }
  write_checksums();
  throw_if_error(state_->file.commit(state_->sync == Sync::kOnCommit));
}

void SafetensorsWriter::write_checksums() {
  // In the reader's order.
  const std::vector<TensorEntry>& tensors = state_->tensors;
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(tensors[a].begin, tensors[a].end, tensors[a].name) <
           std::tie(tensors[b].begin, tensors[b].end, tensors[b].name);
  });
  std::vector<std::uint64_t> hashes;
  for (const std::size_t i : order) hashes.push_back(state_->hash_of_tensor(i));
  const std::string& header = state_->header;
  const std::size_t at = header.find(detail::blank_checksums(tensors.size()));
  const std::string text = detail::checksums_text(hash64(std::as_bytes(std::span(header))), hashes);
  write_at(state_->file.fd(), state_->path, 8 + at, std::as_bytes(std::span(text)));
}

}  // namespace neap::model

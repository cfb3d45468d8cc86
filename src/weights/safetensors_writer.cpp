// Writes safetensors files piece by piece.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/file_identity.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "weights/finite.h"
#include "weights/safetensors.h"
#include "weights/safetensors_detail.h"

namespace neap::weights {
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

// Reserves the space. If the file system cannot, a full disk is found while writing.
void reserve(int fd, const fs::path& path, std::uint64_t bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
    io_error("write", path, errno);
}

// Puts the widest elements first, so that every tensor is aligned to its element.
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
  struct Piece {
    std::uint64_t hash = 0;
    bool hashed = false;
    bool told = false;  // reported by take_written(), or by another process
  };

  State(fs::path where, std::vector<TensorInfo> infos,
        const std::map<std::string, std::string>& metadata);

  [[nodiscard]] int fd() const { return made ? made->fd() : joined.get(); }
  [[nodiscard]] std::uint64_t hash_of_tensor(std::size_t tensor) const;
  void hash_piece(std::size_t tensor, std::size_t number);

  fs::path path;
  Sync sync = Sync::kOnCommit;
  std::optional<TemporaryFile> made;  // the temporary file if this process made it
  Descriptor joined;                  // the file if another process made it
  std::string header;                 // with blank checksums
  std::uint64_t data_begin = 0, data_bytes = 0;
  std::vector<TensorEntry> tensors;                       // in the caller's order
  std::unique_ptr<std::atomic<std::uint64_t>[]> missing;  // bytes not yet written, per tensor
  std::unique_ptr<std::atomic<std::uint64_t>[]> untold;   // bytes that take_written() will report
  std::vector<std::vector<Piece>> pieces;                 // of each tensor
};

SafetensorsWriter::State::State(fs::path where, std::vector<TensorInfo> infos,
                                const std::map<std::string, std::string>& metadata)
    : path(std::move(where)), tensors(infos.size()) {
  std::map<std::string, std::string> all = metadata;
  all[std::string(detail::kChecksumsKey)] = detail::blank_checksums(infos.size());
  header = "{\"__metadata__\":" + nlohmann::json(all).dump() + ",";
  for (const std::size_t i : file_order(path, infos)) {
    TensorEntry& entry = tensors[i];
    static_cast<TensorInfo&>(entry) = std::move(infos[i]);
    entry.begin = data_bytes;
    entry.end = data_bytes += bytes_of(entry);
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
  if (Bytes(header.size()) > read_limits::kWeights.part)
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: {} tensors need a header of {} bytes; the most is {}", path.string(),
                       tensors.size(), header.size(), read_limits::kWeights.part.count()));
  data_begin = 8 + header.size();
  missing = std::make_unique<std::atomic<std::uint64_t>[]>(tensors.size());
  untold = std::make_unique<std::atomic<std::uint64_t>[]>(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    missing[i] = tensors[i].bytes();
    pieces.emplace_back(detail::pieces_of(tensors[i].bytes()));
  }
}

std::uint64_t SafetensorsWriter::State::hash_of_tensor(std::size_t tensor) const {
  std::vector<std::uint64_t> hashes;
  for (const Piece& piece : pieces[tensor]) hashes.push_back(piece.hash);
  return detail::hash_of_pieces(hashes);
}

void SafetensorsWriter::State::hash_piece(std::size_t tensor, std::size_t number) {
  const TensorEntry& entry = tensors[tensor];
  const std::uint64_t first = number * TensorCheck::kPiece;
  std::vector<std::byte> bytes(std::min(entry.bytes() - first, TensorCheck::kPiece));
  detail::read_exactly(fd(), path, data_begin + entry.begin + first, bytes);
  pieces[tensor][number] = {hash64(bytes), /*hashed=*/true, /*told=*/false};
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata, Sync sync)
    : state_(std::make_unique<State>(std::move(path), std::move(tensors), metadata)) {
  state_->sync = sync;
  state_->made = value_or_throw(TemporaryFile::create(state_->path));
  reserve(state_->fd(), state_->path, state_->data_begin + state_->data_bytes);
  const std::string& header = state_->header;
  std::string begin(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) begin[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  begin += header;
  write_at(state_->fd(), state_->path, 0, std::as_bytes(std::span(begin)));
}

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const TensorEntry& entry = state_->tensors.at(tensor);
  if (offset > entry.bytes() || bytes.size() > entry.bytes() - offset ||
      state_->missing[tensor] < bytes.size())
    throw Error(ErrorCode::kInternal, format("{}: tensor \"{}\" was given more bytes than it has",
                                             state_->path.string(), shown(entry.name)));
  if (entry.weights && !all_finite(entry.dtype, bytes))
    throw Error(ErrorCode::kCorrupt,
                format("Cannot save {}: tensor \"{}\" has values that are not finite (NaN or "
                       "infinity)",
                       state_->path.string(), shown(entry.name)));
  write_at(state_->fd(), state_->path, state_->data_begin + entry.begin + offset, bytes);
  const bool whole_piece = offset % TensorCheck::kPiece == 0 &&
                           bytes.size() == std::min(entry.bytes() - offset, TensorCheck::kPiece);
  if (whole_piece && !bytes.empty())
    state_->pieces[tensor][offset / TensorCheck::kPiece] = {hash64(bytes), true, false};
  state_->missing[tensor] -= bytes.size();
  state_->untold[tensor] += bytes.size();
}

std::string SafetensorsWriter::shared_name() const {
  const Result<std::string> identity = file_identity(state_->fd());
  if (!identity.ok()) return "";
  const std::string path = state_->path.string();
  // A path through /proc of an open folder is valid in one process only.
  std::error_code error;
  const fs::path absolute = fs::absolute(path);
  const fs::path folder = fs::canonical(absolute.parent_path(), error);
  return format("{}\n{}\n{}", identity.value(), state_->made->path().string().substr(path.size()),
                (error ? absolute : folder / absolute.filename()).string());
}

std::optional<SafetensorsWriter> SafetensorsWriter::join(
    const std::string& shared_name, std::vector<TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  const std::size_t identity = shared_name.find('\n');
  const std::size_t suffix = shared_name.find('\n', identity + 1);
  if (identity == std::string::npos || suffix == std::string::npos) return std::nullopt;
  const std::string path = shared_name.substr(suffix + 1);
  const std::string temporary = path + shared_name.substr(identity + 1, suffix - identity - 1);
  Descriptor file(::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  const Result<std::string> own = file_identity(file.get());
  if (!own.ok() || own.value() != shared_name.substr(0, identity)) return std::nullopt;
  auto state = std::make_unique<State>(path, std::move(tensors), metadata);
  state->joined = std::move(file);
  return SafetensorsWriter(std::move(state));
}

SafetensorsWriter::Written SafetensorsWriter::take_written() {
  Written out;
  for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
    out.bytes.push_back(state_->untold[i].exchange(0));
    for (std::size_t p = 0; p < state_->pieces[i].size(); ++p) {
      State::Piece& piece = state_->pieces[i][p];
      if (piece.hashed && !std::exchange(piece.told, true))
        out.hashes.push_back({i, p, piece.hash});
    }
  }
  return out;
}

void SafetensorsWriter::add(const Written& of_another) {
  for (std::size_t i = 0; i < of_another.bytes.size(); ++i) {
    if (state_->missing[i] < of_another.bytes[i])
      throw Error(ErrorCode::kInternal,
                  format("{}: tensor \"{}\" was written twice", state_->path.string(),
                         shown(state_->tensors[i].name)));
    state_->missing[i] -= of_another.bytes[i];
  }
  for (const Written::Hash& hash : of_another.hashes)
    state_->pieces.at(hash.tensor).at(hash.piece) = {hash.value, /*hashed=*/true, /*told=*/true};
}

void SafetensorsWriter::hash_rest(std::size_t turn, std::size_t turns) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < state_->pieces.size(); ++i) {
    for (std::size_t p = 0; p < state_->pieces[i].size(); ++p) {
      if (!state_->pieces[i][p].hashed && number++ % turns == turn) state_->hash_piece(i, p);
    }
  }
}

void SafetensorsWriter::leave() {
  if (::close(state_->joined.take()) != 0) io_error("write", state_->path, errno);
}

void SafetensorsWriter::commit() {
  for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
    if (state_->missing[i] != 0)
      throw Error(ErrorCode::kInternal,
                  format("{}: tensor \"{}\" was given {} bytes too few", state_->path.string(),
                         shown(state_->tensors[i].name), state_->missing[i].load()));
  }
  hash_rest(0, 1);
  write_checksums();
  throw_if_error(state_->made->commit(state_->sync == Sync::kOnCommit));
}

void SafetensorsWriter::write_checksums() {
  // In the order of the reader.
  const std::vector<TensorEntry>& tensors = state_->tensors;
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(tensors[a].begin, tensors[a].end, tensors[a].name) <
           std::tie(tensors[b].begin, tensors[b].end, tensors[b].name);
  });
  std::vector<std::uint64_t> hashes;
  hashes.reserve(order.size());
  for (const std::size_t i : order) hashes.push_back(state_->hash_of_tensor(i));
  const std::string& header = state_->header;
  const std::size_t at = header.find(detail::blank_checksums(tensors.size()));
  const std::string text = detail::checksums_text(hash64(std::as_bytes(std::span(header))), hashes);
  write_at(state_->fd(), state_->path, 8 + at, std::as_bytes(std::span(text)));
}

}  // namespace neap::weights

// Writing safetensors files piece by piece.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <numeric>

#include "base/file.h"
#include "base/format.h"
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
      : path(std::move(where)),
        temporary(path.string() + ".tmp-" + std::to_string(::getpid())),
        sync(when),
        fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd.get() < 0) io_error("create", path, errno);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (!done) ::unlink(temporary.c_str());
  }

  fs::path path, temporary;
  Sync sync;
  detail::Descriptor fd;
  bool done = false;
  std::uint64_t data_begin = 0;
  std::vector<TensorEntry> tensors;                       // as given
  std::unique_ptr<std::atomic<std::uint64_t>[]> missing;  // bytes not yet written, one a tensor
};

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     Sync sync) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
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
  for (std::size_t i = 0; i < state_->tensors.size(); ++i)
    state_->missing[i] = state_->tensors[i].bytes();
  state_->data_begin = 8 + header.size();
  const int fd = state_->fd.get();
  reserve(fd, state_->path, state_->data_begin + end);
  std::string begin(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) begin[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  begin += header;
  write_at(fd, state_->path, 0, std::as_bytes(std::span(begin)));
}

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const TensorEntry& entry = state_->tensors.at(tensor);
  if (offset > entry.bytes() || bytes.size() > entry.bytes() - offset ||
      state_->missing[tensor] < bytes.size())
    throw Error(ErrorCode::kInternal, format("{}: tensor \"{}\" was given more bytes than it has",
                                             state_->path.string(), shown(entry.name)));
  write_at(state_->fd.get(), state_->path, state_->data_begin + entry.begin + offset, bytes);
  state_->missing[tensor] -= bytes.size();
}

void SafetensorsWriter::commit() {
  for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
    if (state_->missing[i] != 0)
      throw Error(ErrorCode::kInternal,
                  format("{}: tensor \"{}\" was given {} bytes too few", state_->path.string(),
                         shown(state_->tensors[i].name), state_->missing[i].load()));
  }
  const fs::path& path = state_->path;
  const bool sync = state_->sync == Sync::kOnCommit;
  if (sync && ::fsync(state_->fd.get()) != 0 && errno != EINVAL) io_error("write", path, errno);
  if (state_->fd.close_now() != 0) io_error("write", path, errno);
  if (::rename(state_->temporary.c_str(), path.c_str()) != 0) io_error("rename to", path, errno);
  state_->done = true;
  if (sync) throw_if_error(sync_path(path.has_parent_path() ? path.parent_path() : fs::path(".")));
}

}  // namespace neap::model

#include "weights/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/file_version.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/open_file.h"
#include "base/status.h"
#include "base/text.h"
#include "weights/safetensors_detail.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using detail::bytes_by_shape;
using detail::corrupt;
using detail::io_error;
using detail::read_exactly;
using detail::shape_text;
using detail::shown;

constexpr std::uint64_t kMaxTensors = 4'000'000;

// Reads the header without building a tree. A header of 100 MB with a million names then takes only
// its own size, and repeated keys are detected.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = text;
      if (!names_.insert(text).second) return fail(format("names \"{}\" twice", shown(text)));
      if (names_.size() > kMaxTensors) return fail(format("names over {} tensors", kMaxTensors));
      return true;
    }
    field_ = text;
    if (in_metadata_) {
      if (!metadata.emplace(text, "").second)
        return fail(format("__metadata__ has \"{}\" twice", shown(text)));
      return true;
    }
    const unsigned bit = text == "dtype" ? 1 : text == "shape" ? 2 : text == "data_offsets" ? 4 : 0;
    if (bit == 0)
      return fail(format("tensor \"{}\" has a field \"{}\"", shown(name_), shown(text)));
    if ((seen_ & bit) != 0) return fail(format("tensor \"{}\" has {} twice", shown(name_), text));
    seen_ |= bit;
    return true;
  }
  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ > 2) return unexpected();
    in_metadata_ = name_ == "__metadata__";
    seen_ = 0;
    entry_ = {};
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ != 1 || in_metadata_) return true;
    if (seen_ != 7)
      return fail(format("tensor \"{}\" lacks dtype, shape or data_offsets", shown(name_)));
    if (offsets_.size() != 2)
      return fail(
          format("tensor \"{}\" has {} data_offsets, not 2", shown(name_), offsets_.size()));
    entry_.name = name_;
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    tensors.push_back(std::move(entry_));
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == "dtype") return unexpected();
    in_array_ = true;
    if (field_ == "data_offsets") offsets_.clear();
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return unexpected();
    if (field_ == "data_offsets") {
      offsets_.push_back(value);
      return offsets_.size() <= 2 || unexpected();
    }
    if (value > static_cast<std::uint64_t>(INT64_MAX))
      return fail(format("tensor \"{}\" has a dimension of {}", shown(name_), value));
    entry_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& text) override {
    if (in_array_) return unexpected();
    if (in_metadata_) {
      metadata[field_] = text;
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") return unexpected();
    entry_.dtype = text;
    return true;
  }
  bool null() override { return unexpected(); }
  bool boolean(bool) override { return unexpected(); }
  bool number_integer(number_integer_t) override { return unexpected(); }
  bool number_float(number_float_t, const string_t&) override { return unexpected(); }
  bool binary(binary_t&) override { return unexpected(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(format("is not valid JSON at byte {}", position));
  }

 private:
  bool fail(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  bool unexpected() {
    return fail(depth_ == 0 ? std::string("is not an object")
                            : format("has an unexpected value at \"{}\"", shown(name_)));
  }
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  unsigned seen_ = 0;
  std::string name_, field_;
  TensorEntry entry_;
  std::vector<std::uint64_t> offsets_;
  std::unordered_set<std::string> names_;
};

void check_layout(const fs::path& path, std::vector<TensorEntry>& tensors, std::uint64_t data) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t next = 0;
  for (const TensorEntry& t : tensors) {
    const std::string name = shown(t.name);
    if (bits_of_dtype(t.dtype) == 0)
      corrupt(path, format("tensor \"{}\" has the unknown dtype \"{}\"", name, shown(t.dtype)));
    const auto bytes = bytes_by_shape(t.dtype, t.shape);
    if (!bytes)
      corrupt(path, format("tensor \"{}\" of shape {} has no size in 64 bits", name,
                           shape_text(t.shape)));
    if (t.end < t.begin || t.end - t.begin != *bytes) {
      corrupt(path, format("tensor \"{}\" {} {} takes {} bytes, but its offsets are {} to {}", name,
                           t.dtype, shape_text(t.shape), *bytes, t.begin, t.end));
    }
    if (t.begin != next) {
      corrupt(path, format("tensor \"{}\" begins at {}, {} the end of the one before it at {}",
                           name, t.begin, t.begin < next ? "inside" : "behind a hole after", next));
    }
    next = t.end;
  }
  if (next != data) {
    corrupt(path, format("the tensors end at {}, the file's data at {}{}", next, data,
                         next > data ? " (cut short?)" : ""));
  }
}

}  // namespace

namespace detail {

std::string shown(std::string_view name) {
  return excerpt(name, 200);
}

[[noreturn]] void corrupt(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, path.string() + ": " + what);
}

[[noreturn]] void io_error(std::string_view verb, const fs::path& path, int number) {
  throw Error(number == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              format("Cannot {} {}: {}", verb, path.string(), system_reason(number)));
}

void read_exactly(int fd, const fs::path& path, std::uint64_t at, std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("read", path, errno);
    if (n == 0) corrupt(path, format("ends at byte {}; more was promised", at + done));
    done += static_cast<std::size_t>(n);
  }
}

std::optional<std::uint64_t> bytes_by_shape(const std::string& dtype,
                                            const std::vector<std::int64_t>& shape) {
  auto bits = static_cast<std::uint64_t>(bits_of_dtype(dtype));
  if (bits == 0) return std::nullopt;
  for (const std::int64_t d : shape) {
    if (d < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(d), &bits))
      return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size() && i < 16; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() > 16 ? ", ...]" : "]");
}

std::size_t pieces_of(std::uint64_t bytes) {
  return (bytes + TensorCheck::kPiece - 1) / TensorCheck::kPiece;
}

std::uint64_t hash_of_pieces(const std::vector<std::uint64_t>& pieces) {
  return hash64(std::as_bytes(std::span(pieces)));
}

std::string blank_checksums(std::size_t tensors) {
  return std::string(kChecksumsForm) + std::string((tensors + 1) * kChecksumDigits, '0');
}

std::string checksums_text(std::uint64_t header, const std::vector<std::uint64_t>& tensors) {
  std::string text = format("{}{:016x}", kChecksumsForm, header);
  for (const std::uint64_t hash : tensors) text += format("{:016x}", hash);
  return text;
}

}  // namespace detail

struct SafetensorsFile::State {
  State(fs::path where, Descriptor file) : path(std::move(where)), fd(std::move(file)) {}
  fs::path path;
  Descriptor fd;
  FileVersion opened;
  std::uint64_t data_begin = 0;
  std::vector<TensorEntry> tensors;
  std::map<std::string_view, const TensorEntry*> by_name;
  std::map<std::string, std::string> metadata;
  Checksums checksums = Checksums::kNone;
  std::vector<std::uint64_t> hashes;  ///< in the order of `tensors`, if the checksums are valid

  void take_checksums(std::string& header);
};

// Removes the checksums from the metadata and stores them.
void SafetensorsFile::State::take_checksums(std::string& header) {
  const auto found = metadata.find(std::string(detail::kChecksumsKey));
  if (found == metadata.end()) return;
  const std::string text = std::move(found->second);
  metadata.erase(found);
  checksums = Checksums::kStale;
  const std::string blank = detail::blank_checksums(tensors.size());
  const std::size_t at = header.find(text);
  if (text.size() != blank.size() || at == std::string::npos) return;
  header.replace(at, text.size(), blank);
  const std::uint64_t of_header = hash64(std::as_bytes(std::span(header)));
  std::string_view digits = std::string_view(text).substr(detail::kChecksumsForm.size());
  for (; !digits.empty(); digits.remove_prefix(detail::kChecksumDigits)) {
    std::uint64_t hash = 0;
    std::from_chars(digits.data(), digits.data() + detail::kChecksumDigits, hash, 16);
    hashes.push_back(hash);
  }
  const bool valid = hashes.front() == of_header &&
                     text == detail::checksums_text(of_header, {hashes.begin() + 1, hashes.end()});
  hashes.erase(hashes.begin());
  if (valid) checksums = Checksums::kValid;
}

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  const auto state = std::make_shared<State>(path, value_or_throw(open_regular_file(path)));
  const int fd = state->fd.get();
  state->opened = value_or_throw(version_of(fd, path));
  const std::uint64_t size = state->opened.size;
  if (size < 8) corrupt(path, format("has {} bytes; a safetensors file has at least 8", size));

  unsigned char prefix[8];
  read_exactly(fd, path, 0, std::as_writable_bytes(std::span(prefix)));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  const ReadLimits& limits = read_limits::kWeights;
  if (Bytes(length) > limits.part)
    throw Error(over_limit(format("{}: its header of {} bytes", path.string(), length), limits,
                           Excess::kPart, 0, ErrorCode::kCorrupt));
  if (length > size - 8)
    corrupt(path, format("promises a header of {} bytes, but has {} in all", length, size));
  std::string header(length, '\0');
  read_exactly(fd, path, 8, std::as_writable_bytes(std::span(header)));
  if (header.empty() || header.front() != '{') corrupt(path, "its header does not begin with {");

  throw_if_error(check_json(header, path.string(), limits));
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, &reader)) corrupt(path, "its header " + reader.problem);
  check_layout(path, reader.tensors, size - 8 - length);
  state->tensors = std::move(reader.tensors);
  state->metadata = std::move(reader.metadata);
  state->take_checksums(header);
  for (const TensorEntry& t : state->tensors) state->by_name.emplace(t.name, &t);
  state->data_begin = 8 + length;
  SafetensorsFile file;
  file.state_ = state;
  return file;
}

const fs::path& SafetensorsFile::path() const {
  return state_->path;
}
const std::vector<TensorEntry>& SafetensorsFile::tensors() const {
  return state_->tensors;
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->metadata;
}
void SafetensorsFile::check_unchanged() const {
  if (!value_or_throw(version_of(descriptor(), path())).has_contents_of(state_->opened))
    corrupt(path(), "was changed after its header had been read");
}
const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = state_->by_name.find(name);
  return it == state_->by_name.end() ? nullptr : it->second;
}

std::uint64_t SafetensorsFile::offset_of(const TensorEntry& tensor) const {
  return state_->data_begin + tensor.begin;
}

int SafetensorsFile::descriptor() const {
  return state_->fd.get();
}

SafetensorsFile::Checksums SafetensorsFile::checksums() const {
  return state_->checksums;
}

TensorCheck::TensorCheck(const SafetensorsFile& file, const TensorEntry& tensor)
    : file_(&file), tensor_(&tensor) {
  if (file.checksums() == SafetensorsFile::Checksums::kValid)
    pieces_.resize(detail::pieces_of(tensor.bytes()));
}

void TensorCheck::add(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!pieces_.empty()) pieces_.at(offset / kPiece) = hash64(bytes);
}

void TensorCheck::finish() const {
  if (pieces_.empty()) return;
  const SafetensorsFile::State& state = *file_->state_;
  const auto number = static_cast<std::size_t>(tensor_ - state.tensors.data());
  if (detail::hash_of_pieces(pieces_) == state.hashes.at(number)) return;
  corrupt(state.path, format("the bytes of tensor \"{}\" do not match their checksum: the file was "
                             "damaged after it was written",
                             shown(tensor_->name)));
}

void SafetensorsFile::read(const TensorEntry& tensor, std::uint64_t offset,
                           std::span<std::byte> out) const {
  if (offset > tensor.bytes() || out.size() > tensor.bytes() - offset)
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: tensor \"{}\" has {} bytes; {} were asked from {}", path().string(),
                       shown(tensor.name), tensor.bytes(), out.size(), offset));
  read_exactly(state_->fd.get(), state_->path, state_->data_begin + tensor.begin + offset, out);
}

}  // namespace neap::weights

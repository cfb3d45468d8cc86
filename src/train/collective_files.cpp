#include "train/collective_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "parallel/run_collectively.h"
#include "weights/tensor_io.h"
#include "weights/tensor_pieces.h"

namespace neap::train {
namespace {

using weights::PartRun;
using weights::SafetensorsWriter;
using weights::TensorCheck;

std::uint64_t width_of(const FilePart& part) {
  return static_cast<std::uint64_t>(part.values.element_size());
}

using Place = CollectiveFiles::Place;
constexpr std::int64_t kNumbersOfPlace = sizeof(Place) / sizeof(std::int64_t);

// The places of a buffer that holds `bytes` bytes of the part's elements, starting at element
// `first`.
std::vector<Place> places_of(const FilePart& part, std::int64_t first, std::size_t bytes) {
  const auto width = static_cast<std::int64_t>(width_of(part));
  const std::int64_t end = first + static_cast<std::int64_t>(bytes) / width;
  const auto behind = [&](const PartRun& run) { return run.part + run.count <= first; };
  auto run = std::partition_point(part.runs.begin(), part.runs.end(), behind);
  std::vector<Place> out;
  for (; run != part.runs.end() && run->part < end; ++run) {
    const std::int64_t begin = std::max(first, run->part);
    const std::int64_t count = std::min(end, run->part + run->count) - begin;
    out.push_back({static_cast<std::int64_t>(part.tensor), (run->whole + begin - run->part) * width,
                   (begin - first) * width, count * width});
  }
  return out;
}

// Divides tensors so that a hashed piece that lies within a run is written whole, and can be hashed
// while it is written.
class Segments {
 public:
  Segments(const std::vector<FilePart>& parts, const std::vector<std::int64_t>& elements) {
    for (const FilePart& part : parts)
      if (!part.runs.empty()) add(part, elements[part.tensor]);
  }
  [[nodiscard]] const std::vector<weights::TensorWrite>& writes() const { return writes_; }
  // The places of bytes of write number `number`.
  [[nodiscard]] std::vector<Place> places(std::size_t number, std::uint64_t offset,
                                          std::size_t bytes) const {
    const Segment& segment = segments_[number];
    return places_of(*segment.part,
                     segment.first + static_cast<std::int64_t>(offset / width_of(*segment.part)),
                     bytes);
  }

 private:
  struct Segment {
    const FilePart* part = nullptr;
    std::int64_t first = 0;
  };
  // `elements` is the size of the file's tensor.
  void add(const FilePart& part, std::int64_t elements) {
    const auto piece = static_cast<std::int64_t>(TensorCheck::kPiece / width_of(part));
    std::int64_t first = part.runs.front().part;
    const auto cut = [&](std::int64_t at) {
      if (at <= first) return;
      writes_.push_back(
          {segments_.size(), part.values.narrow(0, first, at - first), part.values.scalar_type()});
      segments_.push_back({&part, std::exchange(first, at)});
    };
    for (const PartRun& run : part.runs) {
      const std::int64_t end = run.whole + run.count;
      const std::int64_t first_piece = (run.whole + piece - 1) / piece * piece;
      const std::int64_t last_piece = end / piece * piece;
      const bool whole = last_piece > first_piece || end == elements;
      if (!whole || first_piece >= end) continue;
      cut(run.part + first_piece - run.whole);
      cut(run.part + last_piece - run.whole);
    }
    cut(part.runs.back().part + part.runs.back().count);
  }

  std::vector<weights::TensorWrite> writes_;
  std::vector<Segment> segments_;
};

// Ranks exchange doubles. A double holds half of a hash exactly.
constexpr int kHalfBits = 32;
double half_of(std::uint64_t value, bool upper) {
  return static_cast<double>(upper ? value >> kHalfBits : value & 0xffffffffU);
}
std::uint64_t joined(double upper, double lower) {
  return static_cast<std::uint64_t>(upper) << kHalfBits | static_cast<std::uint64_t>(lower);
}

// Format: the numbers of tensors and of hashes, then both lists.
std::vector<double> encoded(const SafetensorsWriter::Written& written) {
  std::vector<double> out = {static_cast<double>(written.bytes.size()),
                             static_cast<double>(written.hashes.size())};
  for (const std::uint64_t bytes : written.bytes) out.push_back(static_cast<double>(bytes));
  for (const SafetensorsWriter::Written::Hash& hash : written.hashes)
    out.insert(out.end(),
               {static_cast<double>(hash.tensor), static_cast<double>(hash.piece),
                half_of(hash.value, /*upper=*/true), half_of(hash.value, /*upper=*/false)});
  return out;
}

// Advances `at` past what it reads.
SafetensorsWriter::Written decoded(std::vector<double>::const_iterator& at) {
  SafetensorsWriter::Written out;
  out.bytes.resize(static_cast<std::size_t>(*at++));
  out.hashes.resize(static_cast<std::size_t>(*at++));
  for (std::uint64_t& bytes : out.bytes) bytes = static_cast<std::uint64_t>(*at++);
  for (SafetensorsWriter::Written::Hash& hash : out.hashes) {
    hash = {static_cast<std::size_t>(at[0]), static_cast<std::size_t>(at[1]), joined(at[2], at[3])};
    at += 4;
  }
  return out;
}

at::Tensor view_of(const void* data, std::int64_t count, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {count}, at::dtype(type));
}

// Broadcasts the first rank's text.
std::string broadcast_text(parallel::Communicator& ranks, std::string text) {
  auto bytes = static_cast<std::int64_t>(text.size());
  ranks.broadcast(view_of(&bytes, 1, at::kLong), 0);
  text.resize(static_cast<std::size_t>(bytes));
  ranks.broadcast(view_of(text.data(), bytes, at::kByte), 0);
  return text;
}

// Broadcasts bytes and their places from one rank.
class Parcel {
 public:
  Parcel(parallel::Communicator& ranks, int from) : ranks_(ranks), from_(from) {}

  void send(std::vector<Place> places, std::span<const std::byte> bytes) {
    sizes_ = {std::ssize(places), std::ssize(bytes)};
    ranks_.broadcast(view_of(sizes_.data(), 2, at::kLong), from_);
    broadcast(places);
    ranks_.broadcast(view_of(bytes.data(), std::ssize(bytes), at::kByte), from_);
  }
  void send_end() {
    sizes_ = {};
    ranks_.broadcast(view_of(sizes_.data(), 2, at::kLong), from_);
  }
  // False after the last one.
  [[nodiscard]] bool receive() {
    ranks_.broadcast(view_of(sizes_.data(), 2, at::kLong), from_);
    if (sizes_[1] == 0) return false;
    places_.resize(static_cast<std::size_t>(sizes_[0]));
    broadcast(places_);
    bytes_.resize(static_cast<std::size_t>(sizes_[1]));
    ranks_.broadcast(view_of(bytes_.data(), sizes_[1], at::kByte), from_);
    return true;
  }
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void broadcast(std::vector<Place>& places) {
    ranks_.broadcast(view_of(places.data(), std::ssize(places) * kNumbersOfPlace, at::kLong),
                     from_);
  }

  parallel::Communicator& ranks_;
  int from_;
  std::array<std::int64_t, 2> sizes_{};  // sizes of both tensors
  std::vector<Place> places_;
  std::vector<std::byte> bytes_;
};

}  // namespace

CollectiveFiles::CollectiveFiles(parallel::Communicator& ranks, const weights::TensorFiles& files,
                                 const std::map<std::string, std::string>& metadata,
                                 weights::Sync sync)
    : ranks_(ranks), tensors_(files.places) {
  for (const auto& [file, tensor] : tensors_) {
    const std::vector<std::int64_t>& shape = files.files[file].tensors[tensor].shape;
    elements_.push_back(
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  }
  parallel::run_collectively(ranks_, [&] {
    for (const weights::TensorFiles::File& file : files.files)
      if (ranks_.first()) writers_.emplace_back(file.path, file.tensors, metadata, sync);
  });
  if (!ranks_.alone()) join_first(files, metadata);
  see_ = ranks_.join({sees() ? 1.0 : 0.0});
}

void CollectiveFiles::join_first(const weights::TensorFiles& files,
                                 const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter> joined;
  for (std::size_t i = 0; i < files.files.size(); ++i) {
    const std::string name =
        broadcast_text(ranks_, ranks_.first() ? writers_[i].shared_name() : "");
    if (ranks_.first()) continue;
    if (auto file = SafetensorsWriter::join(name, files.files[i].tensors, metadata))
      joined.push_back(std::move(*file));
  }
  // A rank either sees all files or none.
  if (joined.size() == files.files.size()) writers_ = std::move(joined);
}

void CollectiveFiles::write_places(const std::vector<Place>& places,
                                   std::span<const std::byte> bytes) {
  for (const Place& place : places) {
    const auto& [file, tensor] = tensors_[static_cast<std::size_t>(place.tensor)];
    writers_[file].write(
        tensor, static_cast<std::uint64_t>(place.offset),
        bytes.subspan(static_cast<std::size_t>(place.from), static_cast<std::size_t>(place.bytes)));
  }
}

void CollectiveFiles::write(const PartSource& source) {
  Status status;
  if (sees()) status = parallel::status_of([&] { write_own(source, weights::all_threads()); });
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (see_[static_cast<std::size_t>(rank)] != 0) continue;
    if (rank == ranks_.rank()) {
      status = send(source);
    } else {
      receive(rank, status);
    }
  }
  parallel::run_collectively(ranks_, [&] { throw_if_error(status); });
}

bool CollectiveFiles::all_see() const {
  return std::all_of(see_.begin(), see_.end(), [](double sees) { return sees != 0; });
}

void CollectiveFiles::write_own(const PartSource& source, std::size_t threads) {
  source([&](const std::vector<FilePart>& parts) {
    const Segments segments(parts, elements_);
    weights::write_tensors(
        segments.writes(), threads,
        [&](std::size_t number, std::uint64_t offset, std::span<const std::byte> bytes) {
          write_places(segments.places(number, offset, bytes.size()), bytes);
        });
  });
}

// Also sends the end marker after a failure, because the others wait for it.
Status CollectiveFiles::send(const PartSource& source) {
  Parcel parcel(ranks_, ranks_.rank());
  Status status = parallel::status_of([&] {
    source([&](const std::vector<FilePart>& parts) {
      const Segments segments(parts, elements_);
      weights::write_tensors(
          segments.writes(), /*threads=*/1,
          [&](std::size_t number, std::uint64_t offset, std::span<const std::byte> bytes) {
            parcel.send(segments.places(number, offset, bytes.size()), bytes);
          });
    });
  });
  parcel.send_end();
  return status;
}

// The first rank writes what it receives, until a failure.
void CollectiveFiles::receive(int from, Status& status) {
  Parcel parcel(ranks_, from);
  while (parcel.receive())
    if (ranks_.first() && status.ok())
      status = parallel::status_of([&] { write_places(parcel.places(), parcel.bytes()); });
}

std::vector<double> CollectiveFiles::exchange() {
  std::vector<double> own;
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    const std::vector<double> one = encoded(writers_[i].take_written());
    own.insert(own.end(), one.begin(), one.end());
  }
  return ranks_.join(own);
}

void CollectiveFiles::add(const std::vector<double>& all) {
  auto at = all.begin();
  for (int rank = 0; sees() && rank < ranks_.size(); ++rank) {
    if (see_[static_cast<std::size_t>(rank)] == 0) continue;
    for (SafetensorsWriter& writer : writers_) {
      const SafetensorsWriter::Written written = decoded(at);
      if (rank != ranks_.rank()) writer.add(written);
    }
  }
}

void CollectiveFiles::commit() {
  std::vector<double> written = exchange();
  // All bytes are written by now. Ranks that see the files share the hashing in turn.
  const auto mine = see_.begin() + ranks_.rank();
  const auto turn = static_cast<std::size_t>(std::accumulate(see_.begin(), mine, 0.0));
  const auto turns = static_cast<std::size_t>(std::accumulate(see_.begin(), see_.end(), 0.0));
  parallel::run_collectively(ranks_, [&] {
    add(written);
    for (SafetensorsWriter& writer : writers_) {
      writer.hash_rest(turn, turns);
      if (!ranks_.first()) writer.leave();
    }
  });
  written = exchange();
  parallel::run_collectively(ranks_, [&] {
    add(written);
    for (SafetensorsWriter& writer : writers_)
      if (ranks_.first()) writer.commit();
  });
}

}  // namespace neap::train

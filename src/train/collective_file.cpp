#include "train/collective_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/status.h"
#include "model/tensor_io.h"
#include "parallel/run_collectively.h"

namespace neap::train {
namespace {

using model::PartRun;
using model::SafetensorsWriter;
using model::TensorCheck;

std::uint64_t width_of(const FilePart& part) {
  return static_cast<std::uint64_t>(part.values.element_size());
}

// Where bytes of a buffer go: as many int64 as ranks send.
struct Place {
  std::int64_t tensor = 0, offset = 0;  // in the file
  std::int64_t from = 0, bytes = 0;     // in the buffer
};
constexpr std::int64_t kNumbersOfPlace = sizeof(Place) / sizeof(std::int64_t);

// Of a buffer with `bytes` bytes of the part's elements from `first` on.
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

void write_places(SafetensorsWriter& file, const std::vector<Place>& places,
                  std::span<const std::byte> bytes) {
  for (const Place& place : places)
    file.write(
        static_cast<std::size_t>(place.tensor), static_cast<std::uint64_t>(place.offset),
        bytes.subspan(static_cast<std::size_t>(place.from), static_cast<std::size_t>(place.bytes)));
}

// Ranks exchange doubles, which hold halves of a hash.
constexpr int kHalfBits = 32;
double half_of(std::uint64_t value, bool upper) {
  return static_cast<double>(upper ? value >> kHalfBits : value & 0xffffffffU);
}
std::uint64_t joined(double upper, double lower) {
  return static_cast<std::uint64_t>(upper) << kHalfBits | static_cast<std::uint64_t>(lower);
}

// The number of tensors and of hashes, then both.
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

// Moves `at` behind it.
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

// Of the first rank, on every one.
std::string broadcast_text(parallel::Communicator& ranks, std::string text) {
  auto bytes = static_cast<std::int64_t>(text.size());
  ranks.broadcast(view_of(&bytes, 1, at::kLong), 0);
  text.resize(static_cast<std::size_t>(bytes));
  ranks.broadcast(view_of(text.data(), bytes, at::kByte), 0);
  return text;
}

// Bytes and their places, from one rank to all.
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
  // False: that was all.
  [[nodiscard]] bool receive() {
    ranks_.broadcast(view_of(sizes_.data(), 2, at::kLong), from_);
    if (sizes_[1] == 0) return false;
    places_.resize(static_cast<std::size_t>(sizes_[0]));
    broadcast(places_);
    bytes_.resize(std::max(bytes_.size(), static_cast<std::size_t>(sizes_[1])));
    ranks_.broadcast(view_of(bytes_.data(), sizes_[1], at::kByte), from_);
    return true;
  }
  void write(SafetensorsWriter& file) const { write_places(file, places_, bytes_); }

 private:
  void broadcast(std::vector<Place>& places) {
    ranks_.broadcast(view_of(places.data(), std::ssize(places) * kNumbersOfPlace, at::kLong),
                     from_);
  }

  parallel::Communicator& ranks_;
  int from_;
  std::array<std::int64_t, 2> sizes_{};  // of both
  std::vector<Place> places_;
  std::vector<std::byte> bytes_;
};

}  // namespace

CollectiveFile::CollectiveFile(parallel::Communicator& ranks, const std::filesystem::path& path,
                               const std::vector<model::TensorInfo>& tensors,
                               const std::map<std::string, std::string>& metadata, model::Sync sync)
    : ranks_(ranks) {
  for (const model::TensorInfo& tensor : tensors)
    elements_.push_back(std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1},
                                        std::multiplies<>()));
  parallel::run_collectively(ranks_, [&] {
    if (ranks_.first()) file_.emplace(path, tensors, metadata, sync);
  });
  if (!ranks_.alone()) {
    const std::string name = broadcast_text(ranks_, file_ ? file_->shared_name() : "");
    if (!file_) file_ = SafetensorsWriter::join(name, tensors, metadata);
  }
  sees_ = ranks_.join({file_ ? 1.0 : 0.0});
}

// A segment begins where a piece of the file's tensor does, if a run has whole pieces: they are hashed on the way.
std::vector<model::TensorWrite> CollectiveFile::segments(const FilePart& part) const {
  const auto piece = static_cast<std::int64_t>(TensorCheck::kPiece / width_of(part));
  std::vector<std::int64_t> bounds = {0};
  const auto bound = [&](std::int64_t at) {
    if (at > bounds.back()) bounds.push_back(at);
  };
  for (const PartRun& run : part.runs) {
    const std::int64_t end = run.whole + run.count;
    const std::int64_t first_piece = (run.whole + piece - 1) / piece * piece;
    const std::int64_t last_piece = end / piece * piece;
    const bool whole = last_piece > first_piece || end == elements_[part.tensor];
    if (!whole || first_piece >= end) continue;
    bound(run.part + first_piece - run.whole);
    bound(run.part + last_piece - run.whole);
  }
  bound(part.values.numel());
  std::vector<model::TensorWrite> out;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
    out.push_back({static_cast<std::size_t>(bounds[i]),
                   part.values.narrow(0, bounds[i], bounds[i + 1] - bounds[i]),
                   part.values.scalar_type()});
  return out;
}

void CollectiveFile::write(const PartSource& source) {
  Status status;
  if (file_) status = parallel::status_of([&] { write_own(source); });
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (sees_[static_cast<std::size_t>(rank)] != 0) continue;
    if (rank == ranks_.rank()) {
      status = send(source);
    } else {
      receive(rank, status);
    }
  }
  parallel::run_collectively(ranks_, [&] { throw_if_error(status); });
}

void CollectiveFile::write_own(const PartSource& source) {
  source([&](const FilePart& part) {
    model::write_tensors(segments(part), [&](std::size_t segment, std::uint64_t offset,
                                             std::span<const std::byte> bytes) {
      const auto first = static_cast<std::int64_t>(segment + offset / width_of(part));
      write_places(*file_, places_of(part, first, bytes.size()), bytes);
    });
  });
}

// The others are told the end after a failure, too.
Status CollectiveFile::send(const PartSource& source) {
  Parcel parcel(ranks_, ranks_.rank());
  const Status status = parallel::status_of([&] {
    source([&](const FilePart& part) {
      model::write_tensors_in_order(segments(part), [&](std::size_t segment, std::uint64_t offset,
                                                        std::span<const std::byte> bytes) {
        const auto first = static_cast<std::int64_t>(segment + offset / width_of(part));
        parcel.send(places_of(part, first, bytes.size()), bytes);
      });
    });
  });
  parcel.send_end();
  return status;
}

// The first rank writes what comes, as long as it can.
void CollectiveFile::receive(int from, Status& status) {
  Parcel parcel(ranks_, from);
  while (parcel.receive())
    if (ranks_.first() && status.ok()) status = parallel::status_of([&] { parcel.write(*file_); });
}

void CollectiveFile::exchange() {
  if (ranks_.alone()) return;
  const std::vector<double> all =
      ranks_.join(encoded(file_ ? file_->take_written() : SafetensorsWriter::Written()));
  auto at = all.begin();
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const SafetensorsWriter::Written written = decoded(at);
    if (file_ && rank != ranks_.rank()) file_->add(written);
  }
}

void CollectiveFile::commit() {
  exchange();
  // All bytes are there by now. Ranks that see the file count their turns.
  const auto mine = sees_.begin() + ranks_.rank();
  const auto turn = static_cast<std::size_t>(std::accumulate(sees_.begin(), mine, 0.0));
  const auto turns = static_cast<std::size_t>(std::accumulate(sees_.begin(), sees_.end(), 0.0));
  parallel::run_collectively(ranks_, [&] {
    if (!file_) return;
    file_->hash_rest(turn, turns);
    if (!ranks_.first()) file_->leave();
  });
  exchange();
  parallel::run_collectively(ranks_, [&] {
    if (ranks_.first()) file_->commit();
  });
}

}  // namespace neap::train

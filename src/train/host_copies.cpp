#include "train/host_copies.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/format.h"
#include "weights/tensor_pieces.h"

namespace neap::train {
namespace {

// Alignment of a part in its block.
constexpr Bytes kAlign = 64_B;
// No copy may cross the border of what was pinned with one call: a multiple of this, from the
// block's first byte on.
constexpr std::uint64_t kBorder = 16ull << 20;

// Each block is the only one of its tag, so that it starts where its memory was pinned.
std::string tag_of(std::size_t number) {
  return format("checkpoint.{}", number);
}

// The elements of a part that are written.
at::Tensor written(const FilePart& part) {
  const std::int64_t first = part.runs.front().part;
  return part.values.narrow(0, first, part.runs.back().part + part.runs.back().count - first);
}

Bytes taken_by(const FilePart& part) {
  return part.runs.empty() ? Bytes() : round_up(Bytes(written(part).nbytes()), kAlign);
}

// The part with its written elements at another place.
FilePart moved(const FilePart& part, std::byte* to) {
  const at::Tensor from = written(part);
  FilePart out{part.tensor,
               weights::host_view(to, static_cast<std::uint64_t>(from.numel()), from.scalar_type()),
               part.runs};
  for (weights::PartRun& run : out.runs) run.part -= part.runs.front().part;
  return out;
}

// Copies tensors to one block of memory, several pieces at a time.
void copy_all(const std::vector<at::Tensor>& from, const std::vector<std::uint64_t>& offsets,
              std::byte* block) {
  std::vector<weights::TensorPiece> pieces;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint64_t width = weights::width_of(from[i].scalar_type());
    const auto elements = static_cast<std::uint64_t>(from[i].numel());
    for (std::uint64_t first = 0; first < elements;) {
      const std::uint64_t room = kBorder - (offsets[i] + first * width) % kBorder;
      const std::uint64_t count = std::min(elements - first, room / width);
      pieces.push_back({i, first, count});
      first += count;
    }
  }
  weights::for_each_piece(
      from, pieces, weights::all_threads(),
      [&](const weights::TensorPiece& piece, weights::PieceBuffer&, weights::PieceBuffer&) {
        const at::Tensor values = from[piece.tensor].narrow(
            0, static_cast<std::int64_t>(piece.first), static_cast<std::int64_t>(piece.count));
        std::byte* const to =
            block + offsets[piece.tensor] + piece.first * weights::width_of(values.scalar_type());
        // Not libtorch's copy in host memory, which would start threads in each of these threads.
        if (values.is_cpu()) {
          std::memcpy(to, values.const_data_ptr(), values.nbytes());
        } else {
          weights::host_view(to, piece.count, values.scalar_type()).copy_(values);
        }
      });
}

}  // namespace

Status HostCopies::make_room(std::size_t number, const PartSource& source) {
  Bytes need;
  source([&](const std::vector<FilePart>& parts) {
    for (const FilePart& part : parts) need += taken_by(part);
  });
  if (blocks_.size() <= number) blocks_.resize(number + 1);
  std::unique_ptr<arena::HostStorage>& block = blocks_[number];
  if (block && block->size() >= need) return {};
  block.reset();
  if (need.is_zero()) return {};
  NEAP_TRY_ASSIGN(block, arena::HostStorage::make(arena_, tag_of(number), need));
  return {};
}

PartSource HostCopies::copy(std::size_t number, const PartSource& source) {
  std::byte* const block = blocks_.at(number) ? blocks_[number]->data() : nullptr;
  const auto copies = std::make_shared<std::vector<FilePart>>();
  std::uint64_t offset = 0;
  source([&](const std::vector<FilePart>& parts) {
    std::vector<at::Tensor> from;
    std::vector<std::uint64_t> offsets;
    for (const FilePart& part : parts) {
      if (part.runs.empty()) continue;
      from.push_back(written(part));
      offsets.push_back(offset);
      copies->push_back(moved(part, block + offset));
      offset += taken_by(part).count();
    }
    copy_all(from, offsets, block);
  });
  return [copies](const PartVisit& visit) { visit(*copies); };
}

Bytes HostCopies::bytes() const {
  Bytes sum;
  for (const auto& block : blocks_)
    if (block) sum += block->size();
  return sum;
}

}  // namespace neap::train

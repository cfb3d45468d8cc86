#include "train/rollout_file.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/status.h"

namespace neap::train {
namespace {

constexpr Bytes kPage = arena::DiskFile::kPage;

}  // namespace

RolloutFile::RolloutFile(arena::Arena& arena, const std::string& tag,
                         const std::vector<at::Tensor>& tensors, Bytes buffer)
    : buffer_(buffer),
      memory_(value_or_throw(arena::HostStorage::make(arena, tag, buffer * kBuffers))) {
  Bytes end;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor all = tensor.view(at::kByte);
    const auto most = static_cast<std::int64_t>(buffer.count());
    for (std::int64_t at = 0; at < all.numel(); at += most) {
      const std::int64_t size = std::min(most, all.numel() - at);
      pieces_.push_back({all.narrow(0, at, size), end});
      end += round_up(Bytes(static_cast<std::uint64_t>(size)), kPage);
    }
  }
  storage_ = value_or_throw(arena::DiskStorage::make(arena, tag, end));
}

arena::DiskRange RolloutFile::range(std::size_t piece) const {
  const auto size = static_cast<std::uint64_t>(pieces_[piece].bytes.numel());
  return {&storage_->file(), pieces_[piece].offset,
          memory_->data() + (buffer_ * (piece % kBuffers)).count(), round_up(Bytes(size), kPage)};
}

at::Tensor RolloutFile::staged(std::size_t piece) const {
  return at::from_blob(range(piece).memory, {pieces_[piece].bytes.numel()}, at::kByte);
}

void RolloutFile::drop_failed() {
  for (arena::DiskLane::Batch& batch : running_) static_cast<void>(batch.wait());
}

void RolloutFile::finish() {
  Status first;
  for (arena::DiskLane::Batch& batch : running_)
    if (Status done = batch.wait(); first.ok()) first = std::move(done);
  throw_if_error(first);
}

void RolloutFile::store() {
  drop_failed();
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    arena::DiskLane::Batch& batch = running_[i % kBuffers];
    throw_if_error(batch.wait());
    staged(i).copy_(pieces_[i].bytes);
    batch = disk_.write(std::array{range(i)});
  }
  finish();
}

void RolloutFile::load() {
  const auto begin = [this](std::size_t i) {
    if (i < pieces_.size()) running_[i % kBuffers] = disk_.read(std::array{range(i)});
  };
  drop_failed();
  for (std::size_t i = 0; i < kBuffers; ++i) begin(i);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    throw_if_error(running_[i % kBuffers].wait());
    at::Tensor(pieces_[i].bytes).copy_(staged(i));
    begin(i + kBuffers);
  }
}

}  // namespace neap::train

// Helpers of all moves: waiting, tags by name, copy queues, counters.
#include "arena/operations.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/log.h"

namespace neap::arena {

using trace::EventKind;

void Stopwatch::log(const char* move, const std::vector<Tag*>& tags,
                    const MoveReport& report) const {
  if (!log::enabled(log::Level::kDebug)) return;
  std::string steps;
  for (const auto& [name, seconds] : steps_)
    steps += format("{}{} {:.2f}", steps.empty() ? "" : ", ", name, seconds * 1e3);
  log::debug(format("{} {} took {:.2f} ms for {}, {} copied: {}", move, join(tags),
                    report.seconds * 1e3, report.bytes, report.copied, steps));
}

Status wait_for(Arena::Impl& arena, const Fence& fence) {
  switch (fence.kind) {
    case Fence::Kind::kNone:
      return {};
    case Fence::Kind::kDevice:
      return arena.device.synchronize();
    case Fence::Kind::kStreams:
      for (const device::StreamId stream : fence.streams)
        NEAP_TRY(arena.device.synchronize(stream));
      return {};
  }
  return {};
}

std::vector<Tag*> tags_of(Arena::Impl& arena, std::span<const std::string> names) {
  std::vector<Tag*> found;
  if (names.empty()) {
    for (auto& [name, tag] : arena.tags) found.push_back(tag.get());
    return found;
  }
  for (const std::string& name : names) {
    Tag* tag = arena.known_tag(name);
    if (tag != nullptr && std::find(found.begin(), found.end(), tag) == found.end())
      found.push_back(tag);
  }
  return found;
}

std::string join(const std::vector<Tag*>& tags) {
  std::string text;
  for (const Tag* tag : tags) text += (text.empty() ? "" : ", ") + tag->name;
  return text;
}

Bytes bytes_of(const std::vector<TransferChunk>& chunks) {
  Bytes sum;
  for (const TransferChunk& chunk : chunks) sum += chunk.size;
  return sum;
}

QueueLease::~QueueLease() {
  drop();
}

void QueueLease::drop() {
  if (queue_ == nullptr) return;
  // A queue that failed once is not used again.
  if (queue_->drain().ok()) arena_.give_queue(std::move(queue_));
  queue_ = nullptr;
}

Status QueueLease::take() {
  NEAP_TRY_ASSIGN(queue_, arena_.take_queue());
  return {};
}

Status CopyTimer::start(device::CopyQueue& queue, Direction direction) {
  queue_ = &queue;
  direction_ = direction;
  NEAP_TRY_ASSIGN(first_, mark());
  return {};
}

Status CopyTimer::stop() {
  NEAP_TRY_ASSIGN(last_, mark());
  return {};
}

Result<double> CopyTimer::seconds() {
  return queue_ == nullptr ? Result<double>(0.0) : queue_->seconds_between(first_, last_);
}

Result<std::uint64_t> CopyTimer::mark() {
  return direction_ == Direction::kToHost ? queue_->mark_to_host() : queue_->mark_to_device();
}

void cut_copies(std::vector<TransferChunk>& chunks) {
  // 16 MiB take 0.3 ms on a link of 55 GB/s. Pieces are larger if there would be more copies than a
  // driver queues without blocking.
  constexpr Bytes kPiece = 16_MiB;
  constexpr std::uint64_t kMostPieces = 512;
  Bytes all;
  for (const TransferChunk& chunk : chunks)
    for (const device::Copy& copy : chunk.copies) all += copy.size;
  const Bytes most = std::max(kPiece, all / kMostPieces);
  for (TransferChunk& chunk : chunks) {
    std::vector<device::Copy> pieces;
    for (const device::Copy& copy : chunk.copies) {
      for (Bytes done; done < copy.size; done += most)
        pieces.push_back({copy.device + done.count(),
                          static_cast<std::byte*>(copy.host) + done.count(),
                          std::min(most, copy.size - done)});
    }
    chunk.copies = std::move(pieces);
  }
}

void note_pause(Arena::Impl& arena, const Outgoing& out, double seconds) {
  std::map<Tag*, std::pair<Bytes, Bytes>> sums;  // bytes that left the device, bytes copied
  for (const TransferChunk& chunk : out.chunks) sums[chunk.tag].first += chunk.size;
  for (const auto& item : out.items) {
    auto& sum = sums[item.region->tag];
    if (item.copy) sum.second += total(item.region->parts);
  }
  for (const auto& [tag, sum] : sums) {
    ++tag->sums.pauses;
    tag->sums.copied_to_host += sum.second;
    tag->sums.pause_seconds += seconds;
    tag->sums.last_pause_seconds = seconds;
    if (!sum.second.is_zero())
      arena.events.record(EventKind::kCopyToHost, 0, sum.second, tag->name);
    arena.events.record(EventKind::kPause, 0, sum.first, tag->name);
  }
}

void note_resume(Arena::Impl& arena, const Incoming& in, double seconds) {
  std::map<Tag*, std::pair<Bytes, Bytes>> sums;
  for (const TransferChunk& chunk : in.chunks) {
    auto& sum = sums[chunk.tag];
    sum.first += chunk.size;
    for (const device::Copy& copy : chunk.copies) sum.second += copy.size;
  }
  for (const auto& item : in.items) sums[item.region->tag];
  for (const auto& [tag, sum] : sums) {
    ++tag->sums.resumes;
    tag->sums.copied_to_device += sum.second;
    tag->sums.resume_seconds += seconds;
    tag->sums.last_resume_seconds = seconds;
    if (!sum.second.is_zero())
      arena.events.record(EventKind::kCopyToDevice, 0, sum.second, tag->name);
    arena.events.record(EventKind::kResume, 0, sum.first, tag->name);
  }
}

void note_failure(const std::vector<Tag*>& tags) {
  for (Tag* tag : tags) ++tag->sums.failures;
}

bool has_copies(const std::vector<TransferChunk>& chunks) {
  return std::any_of(chunks.begin(), chunks.end(),
                     [](const TransferChunk& s) { return !s.copies.empty(); });
}

bool keeps_contents(Policy policy) {
  return policy == Policy::kHost || policy == Policy::kDisk;
}

std::vector<Span> spans_of(const Region& region, const Backup& backup) {
  std::vector<Span> spans;
  std::uint64_t place = backup.file != nullptr ? backup.file_offset.count()
                                               : reinterpret_cast<std::uint64_t>(backup.host.at);
  for (const Part& part : backup.parts) {
    spans.push_back({region.address + part.offset.count(), place, part.size});
    place += part.size.count();
  }
  return spans;
}

void sort_spans(std::vector<Span>& spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.at < b.at; });
}

Result<Region*> find_region(const Arena::Impl& arena, RegionId id) {
  const auto it = arena.regions.find(static_cast<std::uint64_t>(id));
  if (it != arena.regions.end()) return it->second.get();
  return Status(ErrorCode::kNotFound,
                format("there is no region {}", static_cast<std::uint64_t>(id)));
}

}  // namespace neap::arena

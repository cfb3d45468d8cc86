// Pause and resume: gather, secure, move, commit; or undo.
#include <algorithm>
#include <optional>
#include <utility>

#include "arena/operations.h"
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

void note_pause(Arena::Impl& arena, const Outgoing& out, double seconds) {
  std::map<Tag*, std::pair<Bytes, Bytes>> sums;  // left, copied
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

namespace {

bool has_copies(const std::vector<TransferChunk>& chunks) {
  return std::any_of(chunks.begin(), chunks.end(),
                     [](const TransferChunk& s) { return !s.copies.empty(); });
}

/// Whether a failed move could restore everything that has to be restored: the host has it.
bool is_restorable(const Outgoing& out) {
  return std::none_of(out.items.begin(), out.items.end(),
                      [](const auto& item) { return item.policy == Policy::kDisk; });
}

/// Gives an unmapped chunk's pages to the driver, which clears them while later chunks are copied and
/// unmapped. At the end of the pause the clearing would slow a resume that follows.
void release_early(Arena::Impl& arena, TransferChunk& chunk) {
  const auto is_private = [&](const Page& page) { return arena.store.is_private(page.id); };
  if (!std::all_of(chunk.pages.begin(), chunk.pages.end(), is_private)) return;
  arena.store.give(std::exchange(chunk.pages, {}), /*to_driver=*/true);
  chunk.released = true;
}

// Transfer chunks that are queued for copying while earlier ones are unmapped: enough to keep the link
// busy.
constexpr std::size_t kCopiesAhead = 2;

Status move_out(Arena::Impl& arena, Outgoing& out, bool release_pages) {
  QueueLease queue(arena);
  const bool copies = has_copies(out.chunks);
  if (copies || !out.disk.empty()) NEAP_TRY(queue.take());
  // Files first: they are slow, and nothing is unmapped before they are complete.
  NEAP_TRY(out.disk.empty() ? Status() : copy_to_disk(out.disk, arena.hosts, queue.get()));
  const bool releases = release_pages && is_restorable(out);
  const std::size_t count = out.chunks.size();
  const std::size_t ahead = copies ? kCopiesAhead : 0;
  std::vector<std::uint64_t> marks(count, 0);
  for (std::size_t i = 0; i < count + ahead; ++i) {
    if (copies && i < count) {
      NEAP_TRY(copy_out(out.chunks[i], queue.get(), out.readying));
      NEAP_TRY_ASSIGN(marks[i], queue.get().mark_to_host());
    }
    if (i < ahead) continue;
    TransferChunk& chunk = out.chunks[i - ahead];
    if (copies) NEAP_TRY(queue.get().wait(marks[i - ahead]));
    NEAP_TRY(unmap_chunk(arena, chunk));
    if (releases) release_early(arena, chunk);
  }
  return {};
}

/// Takes pages as they are mapped: the driver clears released memory in the background, and makes pages
/// of what is clean. Kept pages are taken for all chunks at once, because creating a page may release
/// kept ones.
class PagesByChunk {
 public:
  PagesByChunk(PageStore& store, const std::vector<TransferChunk>& chunks) : store_(store) {
    for (const TransferChunk& chunk : chunks) {
      if (!chunk.pages.empty()) continue;
      for (const Bytes size : chunk.sizes) {
        Page page;
        if (store_.take_kept(size, page)) kept_[size.count()].push_back(page);
      }
    }
  }
  PagesByChunk(const PagesByChunk&) = delete;
  PagesByChunk& operator=(const PagesByChunk&) = delete;
  ~PagesByChunk() {
    for (const auto& [size, pages] : kept_) store_.give(pages);
  }

  /// Kept pages are mapped together, new ones one by one, while the driver clears memory for the next.
  /// After a failure the chunk has the pages that could be had, and some may be mapped. `lacks_pages`:
  /// that there were not enough.
  Status map(Arena::Impl& arena, TransferChunk& chunk, bool& lacks_pages) {
    for (std::size_t i = chunk.pages.size(); i < chunk.sizes.size(); ++i) {
      const Bytes size = chunk.sizes[i];
      if (std::vector<Page>& kept = kept_[size.count()]; !kept.empty()) {
        chunk.pages.push_back(kept.back());
        kept.pop_back();
        continue;
      }
      Result<Page> made = store_.take(size);
      lacks_pages = made.status().code() == ErrorCode::kOutOfDeviceMemory;
      if (!made.ok()) return made.status();
      chunk.pages.push_back(*made);
      NEAP_TRY(map_pages(arena, chunk));
    }
    return chunk.mapped < chunk.pages.size() ? map_pages(arena, chunk) : Status();
  }

 private:
  PageStore& store_;
  std::map<std::uint64_t, std::vector<Page>> kept_;
};

/// Unpins host buffers that are not kept, each chunk's when its copies are over.
///
/// The driver waits for queued copies before it unpins. One chunk at a time, the GPU is never idle for
/// long: after 0.1 s without work it takes 10 ms more for the next pages (docs/arena.md).
class UnpinBehind {
 public:
  UnpinBehind(Arena::Impl& arena, Incoming& in, device::CopyQueue& queue) : in_(in), queue_(queue) {
    std::vector<HostBuffer> buffers;
    for (const auto& item : in.items) buffers.push_back(item.region->backup.host);
    in.unpinning = arena.hosts.unpinning(buffers);
    for (const TransferChunk& chunk : in.chunks)
      for (const device::Copy& copy : chunk.copies) in.unpinning->expect(copy);
  }
  /// The copies of `chunk` are queued: unpins the buffers of the one before.
  Status queued(const TransferChunk& chunk) {
    NEAP_TRY(finish());
    NEAP_TRY_ASSIGN(mark_, queue_.mark_to_device());
    copying_ = &chunk;
    return {};
  }
  Status finish() {
    if (copying_ == nullptr) return {};
    NEAP_TRY(queue_.wait(mark_));
    for (const device::Copy& copy : std::exchange(copying_, nullptr)->copies)
      in_.unpinning->done(copy);
    return {};
  }

 private:
  Incoming& in_;
  device::CopyQueue& queue_;
  const TransferChunk* copying_ = nullptr;
  std::uint64_t mark_ = 0;
};

/// Maps and fills every chunk. Chunks without pages get them here; `lacks_pages` says that there were
/// not enough.
Status move_in(Arena::Impl& arena, Incoming& in, Stopwatch& watch, bool& lacks_pages) {
  PagesByChunk pages(arena.store, in.chunks);
  QueueLease queue(arena);
  const bool copies = has_copies(in.chunks);
  if (copies || !in.disk.empty()) NEAP_TRY(queue.take());
  std::optional<UnpinBehind> unpin;
  if (copies && !arena.keep_host_buffers) unpin.emplace(arena, in, queue.get());
  for (TransferChunk& chunk : in.chunks) {
    NEAP_TRY(pages.map(arena, chunk, lacks_pages));
    if (chunk.copies.empty()) continue;
    NEAP_TRY(copy_in(chunk, queue.get()));
    if (unpin) NEAP_TRY(unpin->queued(chunk));
  }
  watch.lap(unpin ? "pages, copying and unpinning" : "pages");
  if (unpin) NEAP_TRY(unpin->finish());
  Status status = finish_contents(arena, in, queue.taken() ? &queue.get() : nullptr);
  watch.lap("copying");
  return status;
}

}  // namespace

namespace {

bool may_fit(Arena::Impl& arena, const Incoming& in) {
  const auto memory = arena.device.memory();
  return !memory.ok() || memory->free + arena.store.counts().kept >= in.size();
}

/// Takes the pages chunk by chunk while the contents are copied. Where memory is short, takes all of
/// them first, which can wait for other processes.
Status secure_and_move_in(Arena::Impl& arena, Incoming& in, std::chrono::milliseconds wait,
                          Stopwatch& watch) {
  bool lacks_pages = false;
  if (may_fit(arena, in)) {
    Status status = move_in(arena, in, watch, lacks_pages);
    if (!lacks_pages) return status;
    const bool unmapped = unmap_all(arena, in, /*to_driver=*/true);
    if (!unmapped || wait <= wait.zero())
      return arena.explain(std::move(status), in.size(), "resume");
  }
  NEAP_TRY(secure_pages(arena, in, wait));
  watch.lap("taking pages");
  return move_in(arena, in, watch, lacks_pages);
}

}  // namespace

Status explain_shortage(Arena::Impl& arena, const Status& status) {
  const MemoryShortage* shortage = status.shortage();
  return shortage == nullptr ? status : arena.explain(status, shortage->need, "resume");
}

Status secure_pages(Arena::Impl& arena, Incoming& in, std::chrono::milliseconds wait) {
  constexpr std::chrono::hours kLongest{24 * 365};  // a later deadline could overflow the clock
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(wait, kLongest);
  const auto sizes = sizes_of(in.chunks);
  for (;;) {
    auto pages = arena.store.take_all(sizes);
    if (pages.ok()) {
      assign(in.chunks, *pages);
      return {};
    }
    const auto left = [&] { return deadline - std::chrono::steady_clock::now(); };
    if (pages.status().code() != ErrorCode::kOutOfDeviceMemory || left() <= left().zero())
      return arena.explain(pages.status(), in.size(), "resume");
    // Another process gives no sign when it frees memory, so poll; at once when this arena got pages
    // back. Take nothing meanwhile: two processes that each hold a part would wait for each other.
    constexpr std::chrono::milliseconds kLookAgain{5};
    do {
      std::unique_lock lock(arena.table);
      const std::uint64_t seen = arena.freed_memory;
      arena.settled.wait_for(lock, std::min<std::chrono::nanoseconds>(left(), kLookAgain),
                             [&] { return arena.freed_memory != seen; });
    } while (left() > left().zero() && !may_fit(arena, in));
  }
}

Result<MoveReport> Arena::pause(std::span<const std::string> names, const PauseOptions& options) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  Stopwatch watch;
  std::unique_lock lock(arena.table);
  const Moving moving(arena, lock, tags_of(arena, names));
  NEAP_TRY(moving.status());
  Outgoing out = gather_out(arena, moving.tags(), options);
  if (out.items.empty()) return MoveReport{};
  lock.unlock();

  const auto infos = out.infos();
  Status status = arena.call_before_unmap(infos);
  if (status.ok()) {
    watch.lap("listeners");
    status = wait_for(arena, options.fence).with_context("waiting for work on the device");
    watch.lap("waiting for the device");
    if (status.ok()) status = secure(arena, out).with_context("securing room for the backups");
    watch.lap("securing room");
    if (status.ok()) status = move_out(arena, out, options.release_pages);
    watch.lap("copying and unmapping");
    if (!status.ok()) {
      undo(arena, out);
      arena.notify_still_mapped(infos);
    }
  } else {
    undo(arena, out);
  }
  if (!status.ok()) {
    arena.release_unkept_buffers();
    lock.lock();
    note_failure(moving.tags());
    return std::move(status).with_context(format("pausing {}", join(moving.tags())));
  }

  lock.lock();
  commit(arena, out);
  lock.unlock();
  watch.lap("committing");
  arena.store.give(pages_of(out.chunks), options.release_pages);
  watch.lap("releasing pages");
  arena.close_in_background(std::move(out.replaced));
  arena.note_freed_pages();
  arena.release_unkept_buffers();
  arena.record_store();
  watch.lap("host memory");
  const MoveReport report{bytes_of(out.chunks), out.copied, out.items.size(), watch.seconds()};
  watch.log("pausing", moving.tags(), report);
  lock.lock();
  note_pause(arena, out, report.seconds);
  return report;
}

Result<MoveReport> Arena::resume(std::span<const std::string> names, const ResumeOptions& options) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  Stopwatch watch;
  std::unique_lock lock(arena.table);
  const Moving moving(arena, lock, tags_of(arena, names));
  NEAP_TRY(moving.status());
  auto gathered = gather_in(arena, moving.tags());
  if (!gathered.ok()) {
    note_failure(moving.tags());
    lock.unlock();
    return explain_shortage(arena, gathered.status())
        .with_context(format("resuming {}", join(moving.tags())));
  }
  Incoming& in = *gathered;
  if (in.items.empty()) return MoveReport{};
  lock.unlock();

  watch.lap("planning");
  Status status = secure_and_move_in(arena, in, options.wait, watch);
  if (status.ok()) status = arena.call_after_map(in.infos());
  watch.lap("listeners");
  if (!status.ok()) {
    undo(arena, in);
    lock.lock();
    note_failure(moving.tags());
    return std::move(status).with_context(format("resuming {}", join(moving.tags())));
  }

  lock.lock();
  commit(arena, in);
  lock.unlock();
  arena.close_in_background(std::move(in.disk));
  arena.release_unkept_buffers();
  arena.record_store();
  watch.lap("committing and host memory");
  const MoveReport report{bytes_of(in.chunks), in.copied, in.items.size(), watch.seconds()};
  watch.log("resuming", moving.tags(), report);
  lock.lock();
  note_resume(arena, in, report.seconds);
  return report;
}

}  // namespace neap::arena

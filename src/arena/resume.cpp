// Resume: gather what comes, take pages, map and fill them, commit; or undo.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"

namespace neap::arena {
namespace {

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

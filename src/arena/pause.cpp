// Pause: collect the regions, secure space for their contents, copy and unmap, then commit or undo.
#include <algorithm>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"

namespace neap::arena {
namespace {

/// Whether the host has everything that a failed move must restore.
bool is_restorable(const Outgoing& out) {
  return std::none_of(out.items.begin(), out.items.end(),
                      [](const auto& item) { return item.policy == Policy::kDisk; });
}

/// Releases an unmapped chunk's pages to the driver, which clears them while later chunks are
/// copied and unmapped. If it cleared them at the end of the pause, a following resume would be
/// slower.
void release_early(Arena::Impl& arena, TransferChunk& chunk) {
  const auto is_private = [&](const Page& page) { return arena.store.is_private(page.id); };
  if (!std::all_of(chunk.pages.begin(), chunk.pages.end(), is_private)) return;
  arena.store.give(std::exchange(chunk.pages, {}), /*to_driver=*/true);
  chunk.released = true;
}

// Transfer chunks that are queued for copying while earlier ones are unmapped: enough to keep the
// link busy.
constexpr std::size_t kCopiesAhead = 2;

Status move_out(Arena::Impl& arena, Outgoing& out, bool release_pages) {
  QueueLease queue(arena);
  const bool copies = has_copies(out.chunks);
  if (copies || !out.disk.empty()) NEAP_TRY(queue.take());
  // Write files first: they are slow, and nothing may be unmapped before they are complete.
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

}  // namespace

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

}  // namespace neap::arena

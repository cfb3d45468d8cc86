// Exchange: one set of tags is paused while another is resumed, chunk by chunk. Pages of the first
// are reused for the second, and both directions of the link are busy.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

class Exchange {
 public:
  Exchange(Arena::Impl& arena, Outgoing& out, Incoming& in)
      : arena_(arena), out_(out), in_(in), queue_(arena), marks_(out.chunks.size(), 0) {
    for (const TransferChunk& chunk : in.chunks)
      for (const Bytes size : chunk.sizes) ++wanted_[size.count()];
  }

  /// Runs the exchange from the listeners' first call to their last.
  Status perform(const PauseOptions& options) {
    Status status = perform_steps(options);
    queue_.drop();
    return status;
  }

  /// Undoes a failed exchange: `in` is paused again and `out` is resident again. Returns true if
  /// `out` cannot become resident; it is then paused with its backups. Takes the table lock.
  bool take_back() {
    bool out_is_paused = false;
    if (started_) {
      const auto back = go_back();
      if (!back.ok()) log::error(format("exchange went wrong twice: {}", back.status().message()));
      out_is_paused = back.ok() && !*back;
      queue_.drop();
    }
    undo(arena_, in_);
    if (out_is_paused) {
      std::unique_lock lock(arena_.table);
      commit(arena_, out_);
      lock.unlock();
      arena_.close_in_background(std::move(out_.replaced));
    } else {
      undo(arena_, out_);
      std::unique_lock lock(arena_.table);
      enter_slots(out_.chunks);
      count_generations();
      lock.unlock();
      if (told_) arena_.notify_still_mapped(out_.infos());
    }
    return out_is_paused;
  }

  /// Returns the pages of `out` that `in` did not use. The driver first gets as many bytes as it
  /// provided in this exchange, so that kept pages do not accumulate. The store gets the other
  /// pages, or the driver if `to_driver`.
  void give_left_over(bool to_driver) {
    // Release small pages first: large ones are more likely to be reused.
    std::sort(loose_.begin(), loose_.end(),
              [](const Page& a, const Page& b) { return a.size < b.size; });
    std::vector<Page> gone, kept;
    for (const Page& page : loose_) {
      const bool goes = released_ < made_;
      if (goes) released_ += page.size;
      (goes ? gone : kept).push_back(page);
    }
    kept.insert(kept.end(), bound_.begin(), bound_.end());
    arena_.store.give(gone, true);
    arena_.store.give(kept, to_driver);
  }

 private:
  static constexpr std::size_t kAhead = 4;

  Status perform_steps(const PauseOptions& options) {
    NEAP_TRY(arena_.call_before_unmap(out_.infos()));
    told_ = true;
    NEAP_TRY(wait_for(arena_, options.fence));
    NEAP_TRY(secure(arena_, out_).with_context("securing room for the backups"));
    started_ = true;
    NEAP_TRY(move_pages());
    return arena_.call_after_map(in_.infos());
  }

  Status move_pages() {
    NEAP_TRY(queue_.take());
    if (!out_.disk.empty()) NEAP_TRY(copy_to_disk(out_.disk, arena_.hosts, queue_.get()));
    for (TransferChunk& chunk : in_.chunks) {
      chunk.pages.clear();
      for (const Bytes size : chunk.sizes) {
        NEAP_TRY_ASSIGN(const Page page, next_page(size));
        chunk.pages.push_back(page);
      }
      NEAP_TRY(map_chunk(arena_, chunk));
      NEAP_TRY(copy_in(chunk, queue_.get()));
      // Keep the other direction busy: queue its copies as buffers become ready.
      NEAP_TRY(ask_for_copies(gone_ + kAhead));
    }
    while (gone_ < out_.chunks.size()) NEAP_TRY(let_go());
    return finish_contents(arena_, in_, &queue_.get());
  }

  /// Undoes a failed exchange: unmaps `in` and maps `out` again with its contents (discarded tags
  /// have none). Returns true if `out` is resident again, false if it is fully paused with its
  /// backups. Fails if neither was possible.
  Result<bool> go_back() {
    queue_.drop();
    std::vector<Page> pages;
    for (TransferChunk& chunk : in_.chunks) {
      Status status = unmap_chunk(arena_, chunk);
      if (!status.ok()) status = unmap_chunk(arena_, chunk);
      if (!status.ok()) continue;  // the undo of `in` tries again and logs
      pages.insert(pages.end(), chunk.pages.begin(), chunk.pages.end());
      chunk.pages.clear();
    }
    arena_.store.give(pages);
    const Status mapped = map_out_again();
    if (mapped.ok()) return true;
    log::warn(format("the tags that were leaving cannot come back: {}", mapped.message()));
    queue_.drop();
    NEAP_TRY(queue_.take());
    for (std::size_t i = 0; i < out_.chunks.size(); ++i) {
      TransferChunk& chunk = out_.chunks[i];
      if (chunk.mapped != 0) {
        // Chunks that were unmapped have a backup. Restoring them may have failed half-way.
        if (i >= gone_) {
          NEAP_TRY(copy_out(chunk, queue_.get(), out_.readying));
          NEAP_TRY(queue_.get().drain());
        }
        NEAP_TRY(unmap_chunk(arena_, chunk));
      }
      arena_.store.give(std::exchange(chunk.pages, {}));
    }
    return false;
  }

  /// Call after go_back(): regions whose pages changed get a new generation. The caller holds the
  /// table lock.
  void count_generations() const {
    std::set<const Region*> moved;
    for (const TransferChunk* chunk : renewed_) {
      const Address end = chunk->at + chunk->size.count();
      const auto& blocks = chunk->tag->blocks;
      auto it = blocks.upper_bound(chunk->at);
      if (it != blocks.begin()) --it;
      for (; it != blocks.end() && it->first < end; ++it)
        if (it->first + it->second->block_size.count() > chunk->at) moved.insert(it->second);
    }
    for (auto& item : out_.items)
      if (moved.contains(item.region)) item.info.generation = ++item.region->generation;
  }

  Status ask_for_copies(std::size_t until) {
    for (; asked_ < std::min(until, out_.chunks.size()); ++asked_) {
      NEAP_TRY(copy_out(out_.chunks[asked_], queue_.get(), out_.readying));
      NEAP_TRY_ASSIGN(marks_[asked_], queue_.get().mark_to_host());
    }
    return {};
  }

  Status map_out_again() {
    const auto is_loose = [&](const Page& page) {
      const auto same = [&](const Page& p) { return p.id == page.id; };
      return std::any_of(loose_.begin(), loose_.end(), same) ||
             std::any_of(bound_.begin(), bound_.end(), same);
    };
    // First return the remaining pages of chunks that lost one. Then take new pages.
    for (std::size_t i = 0; i < gone_; ++i) {
      TransferChunk& chunk = out_.chunks[i];
      if (chunk.mapped != 0 || std::all_of(chunk.pages.begin(), chunk.pages.end(), is_loose))
        continue;
      std::erase_if(chunk.pages, [&](const Page& page) { return !is_loose(page); });
      arena_.store.give(std::exchange(chunk.pages, {}));
      renewed_.push_back(&chunk);
    }
    loose_.clear();
    bound_.clear();
    if (!renewed_.empty()) NEAP_TRY(queue_.take());
    for (TransferChunk* chunk : renewed_) {
      NEAP_TRY_ASSIGN(chunk->pages, arena_.store.take_all(chunk->sizes));
    }
    for (std::size_t i = 0; i < gone_; ++i) {
      if (out_.chunks[i].mapped == 0) NEAP_TRY(map_chunk(arena_, out_.chunks[i]));
    }
    if (renewed_.empty()) return {};
    for (const TransferChunk* chunk : renewed_) {
      NEAP_TRY(copy_in(*chunk, queue_.get()));
      for (const device::Copy& copy : chunk->kept) NEAP_TRY(queue_.get().to_device(copy));
    }
    NEAP_TRY(copy_from_disk(renewed_disk(), arena_.hosts, queue_.get()));
    return queue_.get().drain();
  }

  /// The contents of the renewed chunks that are on disk.
  [[nodiscard]] std::vector<DiskCopy> renewed_disk() const {
    std::vector<DiskCopy> copies;
    for (const DiskCopy& copy : out_.disk) {
      for (const TransferChunk* chunk : renewed_) {
        const Address from = std::max(copy.device, chunk->at);
        const Address to =
            std::min(copy.device + copy.size.count(), chunk->at + chunk->size.count());
        if (from < to)
          copies.push_back(
              {from, copy.file, copy.offset + Bytes(from - copy.device), Bytes(to - from)});
      }
    }
    return copies;
  }

  /// Unmaps the next chunk of `out` once its contents are saved.
  Status let_go() {
    NEAP_TRY(ask_for_copies(gone_ + kAhead));
    TransferChunk& chunk = out_.chunks[gone_];
    if (!chunk.copies.empty()) NEAP_TRY(queue_.get().wait(marks_[gone_]));
    NEAP_TRY(unmap_chunk(arena_, chunk));
    for (const Page& page : chunk.pages)
      (arena_.store.is_private(page.id) ? loose_ : bound_).push_back(page);
    ++gone_;
    return {};
  }

  bool take_loose(Bytes size, Page& page) {
    const auto it = std::find_if(loose_.begin(), loose_.end(),
                                 [size](const Page& p) { return p.size == size; });
    if (it == loose_.end()) return false;
    page = *it;
    loose_.erase(it);
    return true;
  }

  /// The next page for `in`. While `out` still has pages, physical memory grows by at most one
  /// chunk. After that it grows by what `in` still needs.
  Result<Page> next_page(Bytes size) {
    --wanted_[size.count()];
    Page page;
    for (;;) {
      if (take_loose(size, page) || arena_.store.take_kept(size, page)) return page;
      const bool all_gone = gone_ == out_.chunks.size();
      // One chunk may be new at first, so that both directions start together.
      if (made_ + size > released_ + arena_.chunk_size) {
        if (release_useless()) continue;
        if (!all_gone) {
          NEAP_TRY(let_go());
          continue;
        }
      }
      auto made = arena_.store.take(size);
      if (made.ok()) {
        made_ += size;
        return *made;
      }
      if (made.status().code() != ErrorCode::kOutOfDeviceMemory) return made.status();
      if (release_useless()) continue;
      if (all_gone) return arena_.explain(made.status(), in_.size(), "exchange");
      made_ = released_ + arena_.chunk_size;  // the device is full: from here use pages of `out`
    }
  }

  /// Releases pages of `out` to the driver whose size `in` no longer needs. True if there were any.
  bool release_useless() {
    std::map<std::uint64_t, std::uint64_t> wanted = wanted_;
    std::vector<Page> useless;
    std::deque<Page> useful;
    for (const Page& page : loose_) {
      std::uint64_t& count = wanted[page.size.count()];
      if (count > 0) {
        --count;
        useful.push_back(page);
      } else {
        useless.push_back(page);
        released_ += page.size;
      }
    }
    loose_ = std::move(useful);
    arena_.store.give(useless, true);
    return !useless.empty();
  }

  Arena::Impl& arena_;
  Outgoing& out_;
  Incoming& in_;
  QueueLease queue_;
  bool told_ = false;     ///< listeners were called for `out`
  bool started_ = false;  ///< pages may have moved
  std::vector<std::uint64_t> marks_;
  std::size_t asked_ = 0, gone_ = 0;
  std::deque<Page> loose_;
  std::deque<Page> bound_;               ///< shared with an alias or another process: not reusable
  std::vector<TransferChunk*> renewed_;  ///< chunks of `out` that go_back() gave new pages
  std::map<std::uint64_t, std::uint64_t> wanted_;  ///< count of pages that `in` lacks, by size
  Bytes made_, released_;                          ///< by the driver in this exchange
};

Status check_names(std::span<const std::string> out_names, std::span<const std::string> in_names) {
  if (out_names.empty() || in_names.empty())
    return {ErrorCode::kInvalidArgument, "exchange needs tags that leave and tags that come"};
  for (const std::string& name : in_names) {
    if (std::find(out_names.begin(), out_names.end(), name) != out_names.end())
      return {ErrorCode::kInvalidArgument,
              format("{} cannot leave and come in one exchange", name)};
  }
  return {};
}

}  // namespace

Result<MoveReport> Arena::exchange(std::span<const std::string> out_names,
                                   std::span<const std::string> in_names,
                                   const PauseOptions& options) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  NEAP_TRY(check_names(out_names, in_names));
  const Stopwatch watch;
  std::unique_lock lock(arena.table);
  const auto out_tags = tags_of(arena, out_names);
  const auto in_tags = tags_of(arena, in_names);
  std::vector<Tag*> all = out_tags;
  all.insert(all.end(), in_tags.begin(), in_tags.end());
  const Moving moving(arena, lock, all);
  NEAP_TRY(moving.status());
  const auto what = [&] { return format("exchanging {} for {}", join(out_tags), join(in_tags)); };
  auto gathered = gather_in(arena, in_tags, leaving_pages(arena, out_tags));
  if (!gathered.ok()) {
    note_failure(moving.tags());
    lock.unlock();
    return explain_shortage(arena, gathered.status()).with_context(what());
  }
  Incoming& in = *gathered;
  Outgoing out = gather_out(arena, out_tags, options);
  if (in.items.empty() && out.items.empty()) return MoveReport{};
  // Pages are exchanged chunk by chunk, whether or not contents are copied.
  recut(out.chunks, arena.chunk_size);
  recut(in.chunks, arena.chunk_size);
  lock.unlock();

  Exchange exchange(arena, out, in);
  Status status = exchange.perform(options);
  if (!status.ok()) {
    const bool out_is_paused = exchange.take_back();
    arena.release_unkept_buffers();
    lock.lock();
    note_failure(moving.tags());
    return std::move(status).with_context(
        what() + (out_is_paused ? " (what was leaving stays paused, its contents are safe)" : ""));
  }

  lock.lock();
  commit(arena, out);
  commit(arena, in);
  lock.unlock();
  arena.close_in_background(std::move(in.disk));
  arena.close_in_background(std::move(out.replaced));
  exchange.give_left_over(options.release_pages);
  arena.note_freed_pages();
  arena.release_unkept_buffers();
  arena.record_store();
  const MoveReport report{bytes_of(out.chunks) + bytes_of(in.chunks), out.copied + in.copied,
                          out.items.size() + in.items.size(), watch.seconds()};
  lock.lock();
  note_pause(arena, out, report.seconds);
  note_resume(arena, in, report.seconds);
  return report;
}

}  // namespace neap::arena

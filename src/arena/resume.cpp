// Resume: collect the regions, take pages, map them, queue the copies, wait for them and commit; or
// undo.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "arena/tag_ticket.h"
#include "base/format.h"

namespace neap::arena {
namespace {

/// Takes new pages only when they are mapped: the driver clears released memory in the background
/// and creates pages from cleared memory. Kept pages are taken for all chunks at once, because
/// creating a page may release kept ones.
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

  /// Maps kept pages together and new ones one by one, while the driver clears memory for the next.
  /// After a failure the chunk has the pages that were available, and some may be mapped.
  /// `lacks_pages` is set if there were not enough.
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

/// Unpins host buffers that are not to be kept, one chunk at a time, when the chunk's copies have
/// ended.
///
/// The driver waits for queued copies before it unpins. Unpinning by chunk keeps the GPU from being
/// idle: after 0.1 s without work the GPU needs 10 ms more for the next pages.
class UnpinBehind {
 public:
  UnpinBehind(Arena::Impl& arena, Incoming& in, device::CopyQueue& queue) : in_(in), queue_(queue) {
    std::vector<HostBuffer> buffers;
    for (const auto& item : in.items) buffers.push_back(item.region->backup.host);
    in.unpinning = arena.hosts.unpinning(buffers);
    for (const TransferChunk& chunk : in.chunks)
      for (const device::Copy& copy : chunk.copies) in.unpinning->expect(copy);
  }
  /// Call when the copies of `chunk` are queued. Unpins the buffers of the previous chunk.
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

bool may_fit(Arena::Impl& arena, const Incoming& in) {
  const auto memory = arena.device.memory();
  return !memory.ok() || memory->free + arena.store.counts().kept >= in.size();
}

/// A resume that begin_resume() starts and finish() completes.
class Resume final : public TagTicket {
 public:
  /// kAtOnce: the caller waits for the copies. kBehind: they run while the caller continues.
  enum class Mode { kAtOnce, kBehind };

  Resume(Arena::Impl& arena, std::span<const std::string> names, Mode mode)
      : TagTicket(arena, names), mode_(mode), queue_(arena) {}
  ~Resume() override { finish_if_begun(); }

  Status begin(std::chrono::milliseconds wait) {
    NEAP_TRY(moving_->status());
    auto gathered = gather_in(arena_, moving_->tags());
    if (!gathered.ok()) {
      note_failure(moving_->tags());
      lock_.unlock();
      return explain_shortage(arena_, gathered.status())
          .with_context(format("{} {}", kResuming, join(moving_->tags())));
    }
    in_ = std::move(*gathered);
    lock_.unlock();
    watch_.lap("planning");
    if (mode_ == Mode::kBehind) cut_copies(in_.chunks);
    Status status = in_.items.empty() ? Status() : secure_and_move_in(wait);
    if (!status.ok()) return fail(std::move(status));
    return begun();
  }

  Result<MoveReport> finish() override {
    NEAP_TRY(finish_once("A resume"));
    watch_.lap("meanwhile");
    const Stopwatch rest;
    if (in_.items.empty()) {
      end();
      return MoveReport{};
    }
    Result<double> copied = fill_in();
    Status status = copied.ok() ? arena_.call_after_map(in_.infos()) : copied.status();
    watch_.lap("listeners");
    if (!status.ok()) return fail(std::move(status));
    lock_.lock();
    commit(arena_, in_);
    lock_.unlock();
    queue_.drop();
    arena_.close_in_background(std::move(in_.disk));
    arena_.release_unkept_buffers();
    arena_.record_store();
    watch_.lap("committing and host memory");
    const MoveReport report{bytes_of(in_.chunks), in_.copied, in_.items.size(),
                            seconds_ + rest.seconds(), *copied};
    watch_.log(kResuming, moving_->tags(), report);
    lock_.lock();
    note_resume(arena_, in_, report.seconds);
    end();
    return report;
  }

 private:
  static constexpr const char* kResuming = "resuming";

  Status fail(Status status) {
    queue_.drop();
    undo(arena_, in_);
    lock_.lock();
    return failed(std::move(status), kResuming);
  }

  /// Takes the pages chunk by chunk while the contents are copied. If memory is short, takes all
  /// pages first, which can wait for other processes.
  Status secure_and_move_in(std::chrono::milliseconds wait) {
    bool lacks_pages = false;
    if (may_fit(arena_, in_)) {
      Status status = move_in(lacks_pages);
      if (!lacks_pages) return status;
      unpin_.reset();
      queue_.drop();
      const bool unmapped = unmap_all(arena_, in_, /*to_driver=*/true);
      if (!unmapped || wait <= wait.zero())
        return arena_.explain(std::move(status), in_.size(), "resume");
    }
    NEAP_TRY(secure_pages(arena_, in_, wait));
    watch_.lap("taking pages");
    return move_in(lacks_pages);
  }

  /// Maps every chunk and queues its copies. Chunks without pages get them here. `lacks_pages` is
  /// set if there were not enough.
  Status move_in(bool& lacks_pages) {
    PagesByChunk pages(arena_.store, in_.chunks);
    const bool copies = has_copies(in_.chunks);
    if (copies || !in_.disk.empty()) NEAP_TRY(queue_.take());
    const bool behind = mode_ == Mode::kBehind;
    if (copies && !behind && !arena_.keep_host_buffers) unpin_.emplace(arena_, in_, queue_.get());
    timer_ = {};
    if (copies && behind) NEAP_TRY(timer_.start(queue_.get(), CopyTimer::Direction::kToDevice));
    for (TransferChunk& chunk : in_.chunks) {
      NEAP_TRY(pages.map(arena_, chunk, lacks_pages));
      if (chunk.copies.empty()) continue;
      NEAP_TRY(copy_in(chunk, queue_.get()));
      if (unpin_) NEAP_TRY(unpin_->queued(chunk));
    }
    if (copies && behind) NEAP_TRY(timer_.stop());
    watch_.lap(unpin_ ? "pages, copying and unpinning" : "pages");
    return {};
  }

  /// Waits for the copies and does the work that cannot run in the background. Returns the seconds
  /// of a ticket's copies.
  Result<double> fill_in() {
    if (unpin_) NEAP_TRY(unpin_->finish());
    NEAP_TRY_ASSIGN(const double seconds, timer_.seconds());
    NEAP_TRY(finish_contents(arena_, in_, queue_.taken() ? &queue_.get() : nullptr));
    watch_.lap("copying");
    return seconds;
  }

  Mode mode_;
  Incoming in_;
  QueueLease queue_;
  std::optional<UnpinBehind> unpin_;
  CopyTimer timer_;
};

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
    // Poll, because another process does not signal when it frees memory; retry at once when this
    // arena got pages back. Hold no pages while waiting: two processes that each hold some would
    // wait for each other.
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
  NEAP_TRY(impl_->check_process());
  Resume resume(*impl_, names, Resume::Mode::kAtOnce);
  NEAP_TRY(resume.begin(options.wait));
  return resume.finish();
}

Result<std::unique_ptr<Ticket>> Arena::begin_resume(std::span<const std::string> names) {
  NEAP_TRY(impl_->check_process());
  auto resume = std::make_unique<Resume>(*impl_, names, Resume::Mode::kBehind);
  NEAP_TRY(resume->begin({}));
  return std::unique_ptr<Ticket>(std::move(resume));
}

}  // namespace neap::arena

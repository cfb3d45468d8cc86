// Pause and resume: gather, secure, move, commit; or undo.
#include <algorithm>

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

Bytes bytes_of(const std::vector<Stage>& stages) {
  Bytes sum;
  for (const Stage& stage : stages) sum += stage.size;
  return sum;
}

QueueLease::~QueueLease() {
  drop();
}

void QueueLease::drop() {
  if (queue_ == nullptr) return;
  // A queue that failed once is not trusted with another move.
  if (queue_->drain().ok()) arena_.give_queue(std::move(queue_));
  queue_ = nullptr;
}

Status QueueLease::take() {
  NEAP_TRY_ASSIGN(queue_, arena_.take_queue());
  return {};
}

void note_pause(Arena::Impl& arena, const Outgoing& out, double seconds) {
  std::map<Tag*, std::pair<Bytes, Bytes>> sums;  // left, copied
  for (const Stage& stage : out.stages) sums[stage.tag].first += stage.size;
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
      arena.journal.record(EventKind::kCopyToHost, 0, sum.second, tag->name);
    arena.journal.record(EventKind::kPause, 0, sum.first, tag->name);
  }
}

void note_resume(Arena::Impl& arena, const Incoming& in, double seconds) {
  std::map<Tag*, std::pair<Bytes, Bytes>> sums;
  for (const Stage& stage : in.stages) {
    auto& sum = sums[stage.tag];
    sum.first += stage.size;
    for (const device::Copy& copy : stage.copies) sum.second += copy.size;
  }
  for (const auto& item : in.items) sums[item.region->tag];
  for (const auto& [tag, sum] : sums) {
    ++tag->sums.resumes;
    tag->sums.copied_to_device += sum.second;
    tag->sums.resume_seconds += seconds;
    tag->sums.last_resume_seconds = seconds;
    if (!sum.second.is_zero())
      arena.journal.record(EventKind::kCopyToDevice, 0, sum.second, tag->name);
    arena.journal.record(EventKind::kResume, 0, sum.first, tag->name);
  }
}

void note_failure(const std::vector<Tag*>& tags) {
  for (Tag* tag : tags) ++tag->sums.failures;
}

namespace {

bool has_copies(const std::vector<Stage>& stages) {
  return std::any_of(stages.begin(), stages.end(),
                     [](const Stage& s) { return !s.copies.empty(); });
}

Status move_out(Arena::Impl& arena, Outgoing& out) {
  QueueLease queue(arena);
  const bool copies = has_copies(out.stages);
  if (copies || !out.disk.empty()) NEAP_TRY(queue.take());
  // Files first: they are slow, and nothing is unmapped before they are whole.
  NEAP_TRY(out.disk.empty() ? Status() : copy_to_disk(out.disk, arena.hosts, queue.get()));
  std::vector<std::uint64_t> marks(out.stages.size(), 0);
  for (std::size_t i = 0; copies && i < out.stages.size(); ++i) {
    NEAP_TRY(copy_out(out.stages[i], queue.get(), out.readying));
    NEAP_TRY_ASSIGN(marks[i], queue.get().mark_to_host());
  }
  for (std::size_t i = 0; i < out.stages.size(); ++i) {
    if (copies) NEAP_TRY(queue.get().wait(marks[i]));
    NEAP_TRY(unmap_stage(arena, out.stages[i]));
  }
  return {};
}

/// Unpins host buffers that are not kept, each stage's when its copies are over.
Status unpin_behind(Arena::Impl& arena, Incoming& in, device::CopyQueue& queue,
                    const std::vector<std::uint64_t>& marks) {
  std::vector<HostBuffer> buffers;
  for (const auto& item : in.items) buffers.push_back(item.region->backup.host);
  in.unpinning = arena.hosts.unpinning(buffers);
  for (const Stage& stage : in.stages)
    for (const device::Copy& copy : stage.copies) in.unpinning->expect(copy);
  for (std::size_t i = 0; i < in.stages.size(); ++i) {
    if (in.stages[i].copies.empty()) continue;
    NEAP_TRY(queue.wait(marks[i]));
    for (const device::Copy& copy : in.stages[i].copies) in.unpinning->done(copy);
  }
  return {};
}

Status move_in(Arena::Impl& arena, Incoming& in, Stopwatch& watch) {
  QueueLease queue(arena);
  const bool copies = has_copies(in.stages);
  if (copies || !in.disk.empty()) NEAP_TRY(queue.take());
  const bool unpins = copies && !arena.keep_host_buffers;
  std::vector<std::uint64_t> marks(in.stages.size(), 0);
  for (std::size_t i = 0; i < in.stages.size(); ++i) {
    NEAP_TRY(map_stage(arena, in.stages[i]));
    if (in.stages[i].copies.empty()) continue;
    NEAP_TRY(copy_in(in.stages[i], queue.get()));
    if (unpins) {
      NEAP_TRY_ASSIGN(marks[i], queue.get().mark_to_device());
    }
  }
  watch.lap("mapping");
  if (unpins) NEAP_TRY(unpin_behind(arena, in, queue.get(), marks));
  Status status = finish_contents(arena, in, queue.taken() ? &queue.get() : nullptr);
  watch.lap(unpins ? "copying and unpinning" : "copying");
  return status;
}

}  // namespace

Status refusal(Arena::Impl& arena, const Status& status) {
  const MemoryShortage* shortage = status.shortage();
  return shortage == nullptr ? status : arena.explain(status, shortage->need, "resume");
}

Status secure_pages(Arena::Impl& arena, Incoming& in, std::chrono::milliseconds wait) {
  constexpr std::chrono::hours kForEver{24 * 365};  // the clock's own end must not be passed
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(wait, kForEver);
  const auto sizes = sizes_of(in.stages);
  const auto may_fit = [&] {
    const auto memory = arena.device.memory();
    return !memory.ok() || memory->free + arena.store.counts().kept >= in.size();
  };
  for (;;) {
    auto pages = arena.store.take_all(sizes);
    if (pages.ok()) {
      assign(in.stages, *pages);
      return {};
    }
    const auto left = [&] { return deadline - std::chrono::steady_clock::now(); };
    if (pages.status().code() != ErrorCode::kOutOfDeviceMemory || left() <= left().zero())
      return arena.explain(pages.status(), in.size(), "resume");
    // Another process gives no sign when it frees: look again and again, at once when this arena
    // got pages back. What there is stays free meanwhile: who takes a part of it and waits for the
    // rest can meet another who does the same.
    constexpr std::chrono::milliseconds kLookAgain{5};
    do {
      std::unique_lock lock(arena.table);
      const std::uint64_t seen = arena.freed_memory;
      arena.settled.wait_for(lock, std::min<std::chrono::nanoseconds>(left(), kLookAgain),
                             [&] { return arena.freed_memory != seen; });
    } while (left() > left().zero() && !may_fit());
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
    if (status.ok()) status = move_out(arena, out);
    watch.lap("copying and unmapping");
    if (!status.ok()) {
      undo(arena, out);
      arena.tell_still_there(infos);
    }
  } else {
    undo(arena, out);
  }
  if (!status.ok()) {
    arena.let_buffers_go();
    lock.lock();
    note_failure(moving.tags());
    return std::move(status).with_context(format("pausing {}", join(moving.tags())));
  }

  lock.lock();
  commit(arena, out);
  lock.unlock();
  watch.lap("committing");
  arena.store.give(pages_of(out.stages), options.release_pages);
  watch.lap("releasing pages");
  arena.close_beside(std::move(out.replaced));
  arena.pages_came_back();
  arena.let_buffers_go();
  arena.record_store();
  watch.lap("host memory");
  const MoveReport report{bytes_of(out.stages), out.copied, out.items.size(), watch.seconds()};
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
    return refusal(arena, gathered.status())
        .with_context(format("resuming {}", join(moving.tags())));
  }
  Incoming& in = *gathered;
  if (in.items.empty()) return MoveReport{};
  lock.unlock();

  watch.lap("planning");
  Status status = secure_pages(arena, in, options.wait);
  watch.lap("taking pages");
  if (status.ok()) status = move_in(arena, in, watch);
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
  arena.close_beside(std::move(in.disk));
  arena.let_buffers_go();
  arena.record_store();
  watch.lap("committing and host memory");
  const MoveReport report{bytes_of(in.stages), in.copied, in.items.size(), watch.seconds()};
  watch.log("resuming", moving.tags(), report);
  lock.lock();
  note_resume(arena, in, report.seconds);
  return report;
}

}  // namespace neap::arena

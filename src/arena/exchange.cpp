// Exchange: one set of tags leaves while another comes, stage by stage, with the pages of the one
// going to the other and both directions of the link in use.
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
      : arena_(arena), out_(out), in_(in), queue_(arena), marks_(out.stages.size(), 0) {
    for (const Stage& stage : in.stages)
      for (const Bytes size : stage.sizes) ++wanted_[size.count()];
  }

  Status run() {
    NEAP_TRY(queue_.take());
    if (!out_.disk.empty()) NEAP_TRY(copy_to_disk(out_.disk, arena_.hosts, queue_.get()));
    for (Stage& stage : in_.stages) {
      stage.pages.clear();
      for (const Bytes size : stage.sizes) {
        NEAP_TRY_ASSIGN(const Page page, next_page(size));
        stage.pages.push_back(page);
      }
      NEAP_TRY(map_stage(arena_, stage));
      NEAP_TRY(copy_in(stage, queue_.get()));
      // Keep the other direction busy: its copies are asked for as buffers become ready.
      NEAP_TRY(ask_for_copies(gone_ + kAhead));
    }
    while (gone_ < out_.stages.size()) NEAP_TRY(let_go());
    return finish_contents(arena_, in_, &queue_.get());
  }

  /// Gives the copy queue back, which takes the table lock.
  void end() { queue_.drop(); }

  /// Pages that left `out` and serve nobody now go to the store, or to the driver: all of them, or as
  /// much as it gave, so that kept pages do not grow from one exchange to the next.
  void give_left_over(bool to_driver) {
    // Small ones go first: larger ones find someone else sooner.
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

  /// After a failure: `in` unmapped, `out` mapped again with the contents it had (a tag that was to
  /// be discarded has none). True when `out` is resident again. False: `out` is fully paused with
  /// its backups.  A failure: neither was possible.
  Result<bool> go_back() {
    queue_.drop();
    std::vector<Page> pages;
    for (Stage& stage : in_.stages) {
      Status status = unmap_stage(arena_, stage);
      if (!status.ok()) status = unmap_stage(arena_, stage);
      if (!status.ok()) continue;  // undo of `in` tells and tries again
      pages.insert(pages.end(), stage.pages.begin(), stage.pages.end());
      stage.pages.clear();
    }
    arena_.store.give(pages);
    const Status mapped = map_out_again();
    if (mapped.ok()) return true;
    log::warn(format("the tags that were leaving cannot come back: {}", mapped.message()));
    queue_.drop();
    NEAP_TRY(queue_.take());
    for (std::size_t i = 0; i < out_.stages.size(); ++i) {
      Stage& stage = out_.stages[i];
      if (stage.mapped != 0) {
        // What had gone is backed up already; its way back may have failed half-way.
        if (i >= gone_) {
          NEAP_TRY(copy_out(stage, queue_.get(), out_.readying));
          NEAP_TRY(queue_.get().drain());
        }
        NEAP_TRY(unmap_stage(arena_, stage));
      }
      arena_.store.give(std::exchange(stage.pages, {}));
    }
    return false;
  }

  /// After going back: regions that have other pages than before get a new generation.
  /// Under the table lock.
  void count_generations() const {
    std::set<const Region*> moved;
    for (const Stage* stage : renewed_) {
      const Address end = stage->at + stage->size.count();
      const auto& blocks = stage->tag->blocks;
      auto it = blocks.upper_bound(stage->at);
      if (it != blocks.begin()) --it;
      for (; it != blocks.end() && it->first < end; ++it)
        if (it->first + it->second->block_size.count() > stage->at) moved.insert(it->second);
    }
    for (auto& item : out_.items)
      if (moved.contains(item.region)) item.info.generation = ++item.region->generation;
  }

 private:
  static constexpr std::size_t kAhead = 4;

  Status ask_for_copies(std::size_t until) {
    for (; asked_ < std::min(until, out_.stages.size()); ++asked_) {
      NEAP_TRY(copy_out(out_.stages[asked_], queue_.get(), out_.readying));
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
    // First give back what stages that lost a page still have, then take anew.
    for (std::size_t i = 0; i < gone_; ++i) {
      Stage& stage = out_.stages[i];
      if (stage.mapped != 0 || std::all_of(stage.pages.begin(), stage.pages.end(), is_loose))
        continue;
      std::erase_if(stage.pages, [&](const Page& page) { return !is_loose(page); });
      arena_.store.give(std::exchange(stage.pages, {}));
      renewed_.push_back(&stage);
    }
    loose_.clear();
    bound_.clear();
    if (!renewed_.empty()) NEAP_TRY(queue_.take());
    for (Stage* stage : renewed_) {
      NEAP_TRY_ASSIGN(stage->pages, arena_.store.take_all(stage->sizes));
    }
    for (std::size_t i = 0; i < gone_; ++i) {
      if (out_.stages[i].mapped == 0) NEAP_TRY(map_stage(arena_, out_.stages[i]));
    }
    if (renewed_.empty()) return {};
    for (const Stage* stage : renewed_) {
      NEAP_TRY(copy_in(*stage, queue_.get()));
      for (const device::Copy& copy : stage->kept) NEAP_TRY(queue_.get().to_device(copy));
    }
    NEAP_TRY(copy_from_disk(renewed_disk(), arena_.hosts, queue_.get()));
    return queue_.get().drain();
  }

  /// The disk's part of the contents of renewed stages.
  [[nodiscard]] std::vector<DiskCopy> renewed_disk() const {
    std::vector<DiskCopy> copies;
    for (const DiskCopy& copy : out_.disk) {
      for (const Stage* stage : renewed_) {
        const Address from = std::max(copy.device, stage->at);
        const Address to =
            std::min(copy.device + copy.size.count(), stage->at + stage->size.count());
        if (from < to)
          copies.push_back(
              {from, copy.file, copy.offset + Bytes(from - copy.device), Bytes(to - from)});
      }
    }
    return copies;
  }

  /// Unmaps the next stage of `out`, its contents safe.
  Status let_go() {
    NEAP_TRY(ask_for_copies(gone_ + kAhead));
    Stage& stage = out_.stages[gone_];
    if (!stage.copies.empty()) NEAP_TRY(queue_.get().wait(marks_[gone_]));
    NEAP_TRY(unmap_stage(arena_, stage));
    for (const Page& page : stage.pages)
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

  /// The next page that `in` maps. Physical memory grows by one stage at most while `out` has
  /// something to give, and by what `in` needs more than `out` had afterwards.
  Result<Page> next_page(Bytes size) {
    --wanted_[size.count()];
    Page page;
    for (;;) {
      if (take_loose(size, page) || arena_.store.take_kept(size, page)) return page;
      const bool all_gone = gone_ == out_.stages.size();
      // One stage may be new at once, so that both directions start together.
      if (made_ + size > released_ + arena_.stage) {
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
      made_ = released_ + arena_.stage;  // the device is full: wait for `out` from here on
    }
  }

  /// Sends pages that left `out` and fit nothing that is still to come to the driver; whether there
  /// were any.
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
  std::vector<std::uint64_t> marks_;
  std::size_t asked_ = 0, gone_ = 0;
  std::deque<Page> loose_;
  std::deque<Page> bound_;       ///< shared with an alias or another process: of no use here
  std::vector<Stage*> renewed_;  ///< of `out`, going back: their pages had gone elsewhere
  std::map<std::uint64_t, std::uint64_t> wanted_;  ///< pages that `in` lacks, by size
  Bytes made_, released_;                          ///< by the driver, since it began
};

}  // namespace

Result<MoveReport> Arena::exchange(std::span<const std::string> out_names,
                                   std::span<const std::string> in_names,
                                   const PauseOptions& options) {
  Impl& arena = *impl_;
  NEAP_TRY(arena.check_process());
  if (out_names.empty() || in_names.empty())
    return Status(ErrorCode::kInvalidArgument, "exchange needs tags that leave and tags that come");
  for (const std::string& name : in_names) {
    if (std::find(out_names.begin(), out_names.end(), name) != out_names.end())
      return Status(ErrorCode::kInvalidArgument,
                    format("{} cannot leave and come in one exchange", name));
  }
  const Stopwatch watch;
  std::unique_lock lock(arena.table);
  const auto out_tags = tags_of(arena, out_names);
  const auto in_tags = tags_of(arena, in_names);
  std::vector<Tag*> all = out_tags;
  all.insert(all.end(), in_tags.begin(), in_tags.end());
  const Moving moving(arena, lock, all);
  NEAP_TRY(moving.status());
  auto gathered = gather_in(arena, in_tags, leaving_pages(arena, out_tags));
  if (!gathered.ok()) {
    note_failure(moving.tags());
    lock.unlock();
    return refusal(arena, gathered.status())
        .with_context(format("exchanging {} for {}", join(out_tags), join(in_tags)));
  }
  Incoming& in = *gathered;
  Outgoing out = gather_out(arena, out_tags, options);
  if (in.items.empty() && out.items.empty()) return MoveReport{};
  // Pages change hands stage by stage, whether or not contents are copied.
  recut(out.stages, arena.stage);
  recut(in.stages, arena.stage);
  lock.unlock();

  const auto infos = out.infos();
  Exchange exchange(arena, out, in);
  bool started = false;
  Status status = arena.call_before_unmap(infos);
  const bool told = status.ok();
  if (status.ok()) status = wait_for(arena, options.fence);
  if (status.ok()) status = secure(arena, out).with_context("securing room for the backups");
  if (status.ok()) {
    started = true;
    status = exchange.run();
  }
  if (status.ok()) status = arena.call_after_map(in.infos());
  exchange.end();
  if (!status.ok()) {
    bool out_is_paused = false;
    if (started) {
      const auto back = exchange.go_back();
      if (!back.ok()) log::error(format("exchange went wrong twice: {}", back.status().message()));
      out_is_paused = back.ok() && !*back;
      exchange.end();
    }
    undo(arena, in);
    if (out_is_paused) {
      lock.lock();
      commit(arena, out);
      lock.unlock();
      arena.close_beside(std::move(out.replaced));
    } else {
      undo(arena, out);
      lock.lock();
      enter_slots(out.stages);
      exchange.count_generations();
      lock.unlock();
      if (told) arena.tell_still_there(out.infos());
    }
    arena.let_buffers_go();
    lock.lock();
    note_failure(moving.tags());
    return std::move(status).with_context(
        format("exchanging {} for {}{}", join(out_tags), join(in_tags),
               out_is_paused ? " (what was leaving stays paused, its contents are safe)" : ""));
  }

  lock.lock();
  commit(arena, out);
  commit(arena, in);
  lock.unlock();
  arena.close_beside(std::move(in.disk));
  arena.close_beside(std::move(out.replaced));
  exchange.give_left_over(options.release_pages);
  arena.pages_came_back();
  arena.let_buffers_go();
  arena.record_store();
  MoveReport report{bytes_of(out.stages) + bytes_of(in.stages), out.copied + in.copied,
                    out.items.size() + in.items.size(), watch.seconds()};
  lock.lock();
  note_pause(arena, out, report.seconds);
  note_resume(arena, in, report.seconds);
  return report;
}

}  // namespace neap::arena

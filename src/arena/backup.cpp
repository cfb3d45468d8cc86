// Copies resident tags to the host while they are in use, so that a later pause copies nothing.
#include <algorithm>
#include <optional>
#include <utility>

#include "arena/tag_ticket.h"

namespace neap::arena {
namespace {

class EarlyBackup final : public TagTicket {
 public:
  EarlyBackup(Arena::Impl& arena, std::span<const std::string> names)
      : TagTicket(arena, names), queue_(arena) {}
  ~EarlyBackup() override { finish_if_begun(); }

  Status begin(const Fence& fence) {
    NEAP_TRY(moving_->status());
    gather();
    lock_.unlock();
    Status status = out_.items.empty() ? Status() : queue_copies(fence);
    if (!status.ok()) return fail(std::move(status));
    return begun();
  }

  Result<MoveReport> finish() override {
    NEAP_TRY(finish_once("A backup"));
    const Stopwatch rest;
    Result<double> copied = timer_.seconds();
    Status status = copied.status();
    if (status.ok() && queue_.taken()) status = queue_.get().drain();
    if (!status.ok()) return fail(std::move(status));
    queue_.drop();
    lock_.lock();
    keep();
    const MoveReport report{Bytes(), out_.copied, out_.items.size(), seconds_ + rest.seconds(),
                            *copied};
    end();
    arena_.close_in_background(std::move(out_.replaced));
    return report;
  }

 private:
  /// Collects the bytes that a pause would copy to the host. The regions stay resident. The caller
  /// holds the table lock.
  void gather() {
    out_ = gather_out(arena_, moving_->tags(), {});
    for (const auto& item : out_.items) item.region->state = State::kResident;
    std::erase_if(out_.items,
                  [](const auto& item) { return item.policy != Policy::kHost || !item.copy; });
  }

  Status queue_copies(const Fence& fence) {
    NEAP_TRY(wait_for(arena_, fence).with_context("waiting for work on the device"));
    NEAP_TRY(secure(arena_, out_).with_context("securing room for the backups"));
    cut_copies(out_.chunks);
    NEAP_TRY(queue_.take());
    NEAP_TRY(timer_.start(queue_.get(), CopyTimer::Direction::kToHost));
    for (const TransferChunk& chunk : out_.chunks)
      NEAP_TRY(copy_out(chunk, queue_.get(), out_.readying));
    return timer_.stop();
  }

  /// Marks the host copies as current. The caller holds the table lock.
  void keep() {
    std::map<Tag*, Bytes> copied;
    for (auto& item : out_.items) {
      Backup& backup = item.region->backup;
      if (item.took_host) arena_.hosts.give(backup.host);
      if (backup.file != nullptr)
        out_.replaced.push_back({0, std::move(backup.file), Bytes(0), Bytes(0)});
      backup = std::move(item.backup);
      backup.filled = true;
      copied[item.region->tag] += total(backup.parts);
    }
    for (const auto& [tag, bytes] : copied) {
      tag->sums.copied_to_host += bytes;
      arena_.events.record(trace::EventKind::kCopyToHost, 0, bytes, tag->name);
    }
  }

  Status fail(Status status) {
    queue_.drop();
    out_.readying.finish();
    lock_.lock();
    for (auto& item : out_.items)
      if (item.took_host) arena_.hosts.give(item.backup.host);
    status = failed(std::move(status), "backing up");
    arena_.close_in_background(std::move(out_.replaced));
    arena_.release_unkept_buffers();
    return status;
  }

  Outgoing out_;
  QueueLease queue_;
  CopyTimer timer_;
};

}  // namespace

Result<std::unique_ptr<Ticket>> Arena::begin_backup(std::span<const std::string> names,
                                                    const Fence& fence) {
  NEAP_TRY(impl_->check_process());
  auto backup = std::make_unique<EarlyBackup>(*impl_, names);
  NEAP_TRY(backup->begin(fence));
  return std::unique_ptr<Ticket>(std::move(backup));
}

}  // namespace neap::arena

#include "train/saved_files.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "parallel/run_collectively.h"

namespace neap::train {

// All ranks decide alike, because some ways of writing are collective.
bool SavedFiles::takes_copy(const CollectiveFiles& files, const PartSource& source) {
  Status room;
  if (copies_ == nullptr) room = {ErrorCode::kUnsupported, "no copies are wanted"};
  if (room.ok() && !files.all_see())
    room = {ErrorCode::kUnsupported, "ranks on other machines do not see its files"};
  if (room.ok())
    room =
        parallel::status_of([&] { throw_if_error(copies_->make_room(entries_.size(), source)); });
  if (!ranks_->any(!room.ok())) return true;
  if (copies_ != nullptr && without_copy_.ok())
    without_copy_ = room.ok() ? Status(ErrorCode::kOutOfHostMemory, "another rank has no room")
                              : std::move(room);
  copies_ = nullptr;
  return false;
}

void SavedFiles::add(CollectiveFiles files, const PartSource& source,
                     std::function<void()> finished) {
  PartSource copied;
  if (takes_copy(files, source)) {
    parallel::run_collectively(*ranks_, [&] { copied = copies_->copy(entries_.size(), source); });
  } else {
    files.write(source);
  }
  entries_.push_back({std::move(files), std::move(copied), std::move(finished)});
}

bool SavedFiles::copied() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return static_cast<bool>(entry.copied); });
}

void SavedFiles::commit(std::size_t threads) {
  for (Entry& entry : entries_) {
    parallel::run_collectively(*ranks_, [&] {
      if (entry.copied) entry.files.write_own(entry.copied, threads);
    });
    entry.files.commit();
    parallel::run_collectively(*ranks_, [&] {
      if (entry.finished && ranks_->first()) entry.finished();
    });
  }
}

}  // namespace neap::train

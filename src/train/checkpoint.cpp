#include "train/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/open_folder.h"
#include "base/status.h"
#include "train/checkpoint_files.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "global_step_";
constexpr std::string_view kLatestFile = "latest_checkpointed_iteration.txt";
// Suffix of a checkpoint that is being written or removed, and of a new link: NAME.tmp-PID.
constexpr std::string_view kTemporary = ".tmp-";
// Suffix of an older checkpoint while a new one of the same step replaces it.
constexpr std::string_view kReplaced = ".replaced";
constexpr std::string_view kLatestLink = "latest", kBestLink = "best";

// A number, if the text has only digits.
std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::string temporary_of(const fs::path& path) {
  return format("{}{}{}", path.string(), kTemporary, ::getpid());
}

/// N for "global_step_N"; nullopt for other names, including temporary folders.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return number_in(name.substr(kPrefix.size()));
}

/// Whether a killed writer may have left it: a folder or a link with a temporary name.
bool is_temporary(const fs::path& path) {
  const std::string text = path.filename().string();
  const std::string_view name = text;
  const std::size_t mark = name.rfind(kTemporary);
  if (mark == std::string_view::npos || !number_in(name.substr(mark + kTemporary.size())))
    return false;
  const std::string_view target = name.substr(0, mark);
  if (target != kLatestLink && target != kBestLink) return step_of(target).has_value();
  std::error_code error;
  return fs::is_symlink(path, error);
}

void check(const std::error_code& error, std::string_view what, const fs::path& path) {
  if (error) {
    throw Error(ErrorCode::kIo, format("Cannot {} {}: {}", what, path.string(), error.message()));
  }
}

void remove_quietly(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log::warn(format("Cannot remove {}: {}", path.string(), error.message()));
}

std::vector<fs::path> children(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    out.push_back(it->path());
  }
  check(error, "list", folder);
  return out;
}

void sync_tree(const fs::path& folder) {
  for (const fs::path& child : children(folder)) {
    if (fs::is_directory(child)) {
      sync_tree(child);
    } else {
      throw_if_error(sync_path(child));
    }
  }
  throw_if_error(sync_path(folder));
}

// False if it is not a link that this program made; then it is kept.
bool may_replace(const fs::path& link) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(link, error);
  if (!fs::exists(status) || fs::is_symlink(status)) return true;
  log::warn(format("{} is not a link; left as it is", link.string()));
  return false;
}

void point(const fs::path& link, const fs::path& folder) {
  if (!may_replace(link)) return;
  std::error_code error;
  const fs::path temporary = temporary_of(link);
  fs::remove(temporary, error);
  fs::create_directory_symlink(folder.filename(), temporary, error);
  // A file system without links still has the text file and trainer.json.
  if (error) {
    log::warn(format("Cannot make the link {}: {}", link.string(), error.message()));
    return;
  }
  fs::rename(temporary, link, error);
  check(error, "rename to", link);
}

// The folders of a root, by kind.
struct Contents {
  std::vector<FoundCheckpoint> checkpoints;  // highest step first
  std::vector<fs::path> replaced;            // older checkpoints that a new one replaces
  std::vector<fs::path> temporary;           // folders and links of killed writers
};

// Sorts the newest first. Steps after `written` were abandoned, and come last.
void sort_by_age(std::vector<FoundCheckpoint>& checkpoints,
                 std::int64_t written = std::numeric_limits<std::int64_t>::max()) {
  const auto age = [&](const FoundCheckpoint& c) { return std::pair(c.step > written, -c.step); };
  std::sort(checkpoints.begin(), checkpoints.end(),
            [&](const auto& a, const auto& b) { return age(a) < age(b); });
}

Contents contents_of(const fs::path& root) {
  Contents out;
  std::error_code error;
  if (!fs::is_directory(root, error)) return out;
  for (const fs::path& child : children(root)) {
    const std::string name = child.filename().string();
    if (const auto step = step_of(name)) {
      if (fs::is_directory(child, error)) out.checkpoints.push_back({child, *step, {}});
    } else if (is_temporary(child)) {
      out.temporary.push_back(child);
    } else if (child.extension() == kReplaced && step_of(child.stem().string())) {
      out.replaced.push_back(child);
    }
  }
  sort_by_age(out.checkpoints);
  return out;
}

// As contents_of, after repairing a kill in put_in_place(): an older checkpoint is renamed back if
// its place is free. Several ranks may do so at once.
Contents settled_contents_of(const fs::path& root) {
  Contents out = contents_of(root);
  std::erase_if(out.replaced, [&](const fs::path& old) {
    const fs::path target = root / old.stem();
    std::error_code error;
    // If the place is taken, the new checkpoint is complete. The next writer removes the old one.
    if (fs::exists(target, error)) return false;
    fs::rename(old, target, error);
    if (fs::is_directory(target, error))
      out.checkpoints.push_back({target, *step_of(target.filename().string()), {}});
    return true;
  });
  sort_by_age(out.checkpoints);
  return out;
}

// Steps later than the one just written were abandoned for an older checkpoint, so they count as
// the oldest.
void remove_old(const fs::path& root, std::int64_t written, const Retention& keep) {
  if (keep.newest <= 0) return;
  std::vector<FoundCheckpoint> all = all_checkpoints(root);
  sort_by_age(all, written);
  for (std::size_t i = static_cast<std::size_t>(keep.newest); i < all.size(); ++i) {
    if (all[i].step == keep.best) continue;
    const fs::path& folder = all[i].folder;
    if (keep.is_own && !keep.is_own(folder)) continue;
    // Renamed first, because a kill during the removal must not leave half a checkpoint.
    const fs::path doomed = temporary_of(folder);
    std::error_code error;
    fs::rename(folder, doomed, error);
    remove_quietly(error ? folder : doomed);
  }
}

// Moves a new folder to a place that an older one may have. Returns the older one's new path, for
// removal, or an empty path. At every moment one of both can be found: if the file system cannot
// exchange names, the older one gets a name that is repaired after a kill.
fs::path put_in_place(const fs::path& folder, const fs::path& target) {
  std::error_code error;
  if (!fs::exists(target, error)) {
    fs::rename(folder, target, error);
    check(error, "rename to", target);
    return {};
  }
  if (::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0)
    return folder;
  fs::path old = target.string() + std::string(kReplaced);
  fs::rename(target, old, error);
  check(error, "rename", target);
  fs::rename(folder, target, error);
  if (error) {
    std::error_code ignored;
    fs::rename(old, target, ignored);
  }
  check(error, "rename to", target);
  return old;
}

}  // namespace

fs::path checkpoint_folder(const fs::path& root, std::int64_t step) {
  return root / format("{}{}", kPrefix, step);
}

CheckpointWriter::CheckpointWriter(const fs::path& root, std::int64_t step) : step_(step) {
  std::error_code error;
  fs::create_directories(root, error);
  check(error, "create", root);
  directory_ = Descriptor(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory_.get() < 0) check({errno, std::generic_category()}, "open", root);
  root_ = path_through(directory_.get(), root);
  folder_ = temporary_of(checkpoint_folder(root_, step));
  const Contents left = settled_contents_of(root_);
  for (const std::vector<fs::path>& folders : {left.temporary, left.replaced})
    for (const fs::path& folder : folders) remove_quietly(folder);
  // Fails if another process created the folder.
  if (::mkdir(folder_.c_str(), 0777) != 0)
    check(std::error_code(errno, std::generic_category()), "create", folder_);
}

CheckpointWriter::~CheckpointWriter() {
  if (!committed_) remove_quietly(folder_);
}

Status CheckpointWriter::readable(const Status& failure) const {
  std::error_code error;
  const bool removed = !committed_ && !fs::exists(folder_, error) && !error;
  std::string text = removed ? format(
                                   "{} was removed while the checkpoint of step {} was written "
                                   "in it, and this checkpoint was not made",
                                   folder_.string(), step_)
                             : failure.message();
  const ErrorCode code = removed ? ErrorCode::kIo : failure.code();
  std::string now = fs::read_symlink(root_, error).string();
  if (error) return {code, std::move(text)};        // root_ is already the path itself
  constexpr std::string_view kGone = " (deleted)";  // the kernel's suffix for a removed folder
  if (now.ends_with(kGone) && !fs::exists(now, error)) now.resize(now.size() - kGone.size());
  const std::string through = root_.string();
  for (std::size_t at = 0; (at = text.find(through, at)) != std::string::npos; at += now.size())
    text.replace(at, through.size(), now);
  return {code, std::move(text)};
}

void CheckpointWriter::commit(const Retention& keep) {
  try {
    commit_folder(keep);
  } catch (const Error& e) {
    throw Error(readable(e.status()));
  }
}

void CheckpointWriter::commit_folder(const Retention& keep) {
  write_checksums(folder_);
  sync_tree(folder_);
  const fs::path target = checkpoint_folder(root_, step_);
  // One may exist if a run was killed before it set the links, or resumed from an older checkpoint.
  const fs::path older = put_in_place(folder_, target);
  committed_ = true;
  throw_if_error(sync_path(root_));
  if (!older.empty()) remove_quietly(older);
  throw_if_error(write_file_atomic(root_ / kLatestFile, format("{}\n", step_)));
  point(root_ / kLatestLink, target);
  if (keep.best && !point_best(root_, keep.best)) {
    log::warn(
        format("The best checkpoint, step {}, is not in the output folder any more", *keep.best));
  }
  remove_old(root_, step_, keep);
}

bool point_best(const fs::path& root, std::optional<std::int64_t> step) {
  const fs::path link = root / kBestLink;
  std::error_code error;
  if (!step) {
    if (fs::is_symlink(link, error)) fs::remove(link, error);
    return true;
  }
  const fs::path folder = checkpoint_folder(root, *step);
  if (!fs::is_directory(folder, error)) return false;
  point(link, folder);
  return true;
}

std::vector<FoundCheckpoint> all_checkpoints(const fs::path& root) {
  return contents_of(root).checkpoints;
}

std::vector<FoundCheckpoint> other_checkpoints(const FoundCheckpoint& one) {
  std::vector<FoundCheckpoint> out = all_checkpoints(one.folder.parent_path());
  std::erase_if(out, [&](const FoundCheckpoint& c) { return c.step == one.step; });
  sort_by_age(out, one.step);
  return out;
}

namespace {

// The checkpoint that the text file names. nullopt, with the reason in `why`, if the folder does
// not exist.
std::optional<FoundCheckpoint> pointed_checkpoint(const fs::path& root, std::string& why) {
  const fs::path pointer = root / kLatestFile;
  std::error_code error;
  if (!fs::exists(pointer, error)) {
    why = format("{} is missing", pointer.string());
    return std::nullopt;
  }
  const Result<std::string> read = read_file(pointer, 4_KiB);
  if (!read.ok()) {
    why = read.status().message();
    return std::nullopt;
  }
  std::string text = *read;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  const auto step = number_in(text);
  if (!step) {
    why = format("{} holds \"{}\", which is not a step", pointer.string(), text);
    return std::nullopt;
  }
  const fs::path folder = checkpoint_folder(root, *step);
  if (fs::is_directory(folder, error)) return FoundCheckpoint{folder, *step, {}};
  why = format("{} names step {}, but {} is not there", pointer.string(), *step, folder.string());
  return std::nullopt;
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& root,
                                                 const std::vector<FoundCheckpoint>& folders,
                                                 const CheckWhole& check_whole) {
  std::string why;
  if (auto found = pointed_checkpoint(root, why)) return found;
  std::error_code error;
  if (folders.empty() && !fs::exists(root / kLatestFile, error)) return std::nullopt;
  for (FoundCheckpoint one : folders) {
    try {
      check_whole(one.folder);
    } catch (const Error& e) {
      why += format(". {} is damaged: {}", one.folder.string(), e.what());
      continue;
    }
    one.warning = format(
        "{}. The newest whole checkpoint is {}. To resume from another one, set "
        "trainer.resume_mode to its folder",
        why, one.folder.string());
    return one;
  }
  throw Error(ErrorCode::kNotFound, format("{}, and {} has no whole checkpoint. To start anew, set "
                                           "trainer.default_local_dir to another folder",
                                           why, root.string()));
}

}  // namespace

std::optional<FoundCheckpoint> find_checkpoint(const fs::path& root, const std::string& mode,
                                               const fs::path& given,
                                               const CheckWhole& check_whole) {
  if (mode == "disable") return std::nullopt;
  std::error_code error;
  if (mode != "auto") {
    (void)settled_contents_of(given.parent_path());
    fs::path folder = fs::weakly_canonical(given, error);  // "latest" is a link
    if (folder.filename().empty()) folder = folder.parent_path();
    const auto step = step_of(folder.filename().string());
    if (error || !step || !fs::is_directory(folder, error)) {
      throw Error(ErrorCode::kInvalidArgument,
                  format("trainer.resume_mode names {}, which is not a checkpoint folder "
                         "(global_step_N)",
                         given.string()));
    }
    return FoundCheckpoint{folder, *step, {}};
  }
  return newest_checkpoint(root, settled_contents_of(root).checkpoints, check_whole);
}

}  // namespace neap::train

// Encoded rows on disk, made once for each content and recipe.
//
//   FOLDER/KEY.rows        a file of row_store.h; KEY is a hash of the contents and the recipe
//   FOLDER/KEY.lock        held while KEY.rows is made: a second process waits and then reads it
//   FOLDER/STAMP.content   the hash of the contents of a file that has this stamp
//
// The kernel releases the lock when a process ends in any way. The next process removes what a killed one
// had written. On a file system without locks two processes may do the same work.
//
// Each time that rows are made, files beyond the limit are removed. Least recently used files go first;
// files that a process has open stay. Old hashes and leftovers of killed processes are also removed.
//
// Threads   any.
//
// Failure   Status with the path.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"
#include "data/row_store.h"

namespace neap::data {

/// Creates `folder` if it is missing; empty: neap/data in the user's cache.
[[nodiscard]] Result<std::filesystem::path> make_cache_folder(const std::filesystem::path& folder);

/// As hash_of_file(), with the hash stored in `folder`. Fails if the file changes meanwhile.
[[nodiscard]] Result<std::string> content_hash(const std::filesystem::path& folder,
                                               const std::filesystem::path& file);

/// Returns the rows that `folder` has under `key`, else calls `make` and stores its rows. The
/// folder must exist. A damaged file is made again. Other rows in the folder stay while the total
/// is at most `limit`; 0: no limit.
[[nodiscard]] Result<RowStore> cached_rows(const std::filesystem::path& folder,
                                           const std::string& key, Bytes limit,
                                           const std::function<Result<RowStore>(RowWriter&)>& make);

}  // namespace neap::data

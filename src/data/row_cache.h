// Encoded rows on disk, made once for each content and recipe.
//
//   FOLDER/KEY.rows        a file of row_store.h; KEY is a hash of the contents and the recipe
//   FOLDER/KEY.lock        held while KEY.rows is made: a second process waits and then reads it
//   FOLDER/STAMP.content   the hash of the contents of a file that has this stamp
// The kernel releases the lock when a process ends, however it ends; what a killed one had written
// is removed by the next. On a file system without locks two processes may do the same work.
// Each time that rows are made, files over the limit are removed, those that were not used for longest
// first and none that a process has open; so are hashes and leftovers of killed processes that are old.
//
// Threads   any.   Failure   Status with the path.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"
#include "data/row_store.h"

namespace neap::data {

/// Makes `folder` where it is missing; empty: neap/data of the user's cache.
[[nodiscard]] Result<std::filesystem::path> make_cache_folder(const std::filesystem::path& folder);

/// hash_of_file, kept in `folder`. Fails where the file changes meanwhile.
[[nodiscard]] Result<std::string> content_hash(const std::filesystem::path& folder,
                                               const std::filesystem::path& file);

/// In a folder that exists: what `make` writes, unless `folder` has it under `key`. A damaged file is
/// made anew. Other rows in the folder stay while all take `limit` at most; 0: there is no limit.
[[nodiscard]] Result<RowStore> cached_rows(const std::filesystem::path& folder,
                                           const std::string& key, Bytes limit,
                                           const std::function<Result<RowStore>(RowWriter&)>& make);

}  // namespace neap::data

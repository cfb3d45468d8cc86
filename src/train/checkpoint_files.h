// Checksums of a checkpoint's files. They reveal damage by a disk or a copy before a run resumes.
//
//   CHECKPOINT/checksums.json   hash and bytes of each file, by its path in the checkpoint
//
// Tensor files contain their own checksums (weights/safetensors.h), which are checked when they are
// read. checksums.json has only their sizes.
//
// Threads   stateless functions.
// Failure   Error.
// Cost      one pass over the files without tensors.
#pragma once

#include <filesystem>

#include "weights/open_folders.h"

namespace neap::train {

/// Writes checksums.json for all files in the folder.
void write_checksums(const std::filesystem::path& checkpoint);

/// kCorrupt with the file that is missing or has changed. A checkpoint without checksums passes.
void check_files(const std::filesystem::path& checkpoint, const weights::OpenFolders& folders = {});

}  // namespace neap::train

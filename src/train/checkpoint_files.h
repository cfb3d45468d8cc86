// Checksums of the files of a checkpoint: what a disk or a copy has damaged is found before a run
// continues from it.
//
//   CHECKPOINT/checksums.json   hash and bytes of each file by its path in the checkpoint
// Files of tensors have their checksums inside (weights/safetensors.h), which reading compares; of them
// checksums.json has the bytes only.
//
// Threads   functions without state.   Failure   Error.
// Cost      one pass over the files that hold no tensors.
#pragma once

#include <filesystem>

namespace neap::train {

/// Of all files in a folder, into it.
void write_checksums(const std::filesystem::path& checkpoint);

/// kCorrupt with the file that is missing or is not what was written. A checkpoint without checksums
/// passes.
void check_files(const std::filesystem::path& checkpoint);

}  // namespace neap::train

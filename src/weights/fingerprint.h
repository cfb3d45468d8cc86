// A short text that identifies the contents of model folders without reading all bytes.
//
// It covers config.json, the names and sizes of the weight files, and samples of each file from
// beginning to end. A file that Neap wrote has checksums of all its bytes at its beginning
// (weights/safetensors.h). Training changes nearly all weights, so the samples show it.
//
// Threads   stateless function.
//
// Failure   Error.
//
// Cost      reads 1.1 MiB per file.
#pragma once

#include <string>

#include "spec/types/model_files.h"

namespace neap::weights {

/// Fingerprint of a model and its adapter, independent of their location.
[[nodiscard]] std::string fingerprint(const spec::ModelFiles& files);

/// Metadata key of an adapter's weights: the fingerprint of the base that it was trained on.
inline constexpr const char* kBaseKey = "neap_base";
/// NEAP_OTHER_BASE=allow makes check_base() warn instead of fail.
inline constexpr const char* kOtherBaseVariable = "NEAP_OTHER_BASE";

/// Fails if an adapter names the base that it was trained on, and `files.base` has other contents.
/// Adapters of other programs name none.
void check_base(const spec::ModelFiles& files);

}  // namespace neap::weights

// A short text that tells apart the contents of models' folders, without reading all of them.
//
// It covers config.json, the names and sizes of the weights' files, and of each file its beginning and
// samples from end to end. A file that Neap wrote has checksums of all its bytes in its beginning
// (weights/safetensors.h). Training changes nearly all weights, so that samples show it.
//
// Threads   function without state.   Failure   Error.
// Cost      1.1 MiB of reading a file.
#pragma once

#include <string>

#include "spec/model_files.h"

namespace neap::weights {

/// Of a model and its adapter, wherever they are.
[[nodiscard]] std::string fingerprint(const spec::ModelFiles& files);

/// In the metadata of an adapter's weights: the fingerprint of the base that it was trained on.
inline constexpr const char* kBaseKey = "neap_base";
/// NEAP_OTHER_BASE=allow makes check_base() warn instead of fail.
inline constexpr const char* kOtherBaseVariable = "NEAP_OTHER_BASE";

/// Fails where an adapter says which base it was trained on and `files.base` has other contents. Adapters of other
/// programs do not say.
void check_base(const spec::ModelFiles& files);

}  // namespace neap::weights

// Model folders that are open, so that a run or a plan reads each file's header once. Copies share
// what was read.
//
// A fingerprint identifies the contents of a model's folders without reading all bytes. It covers
// config.json, the names and sizes of the weight files, and samples of each file from beginning to
// end. A file that Neap wrote has checksums of all its bytes at its beginning
// (weights/safetensors.h). Training changes nearly all weights, so the samples show it.
//
// Threads   any.
//
// Failure   Error; kCorrupt if a file was changed since its header was read.
//
// Cost      opening reads headers; a fingerprint reads 1.1 MiB per file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "spec/types/model_files.h"
#include "weights/safetensors.h"

namespace neap::weights {

class OpenFolders {
 public:
  OpenFolders();

  [[nodiscard]] std::shared_ptr<const WeightFolder> weights(
      const std::filesystem::path& folder) const;
  [[nodiscard]] SafetensorsFile file(const std::filesystem::path& path) const;
  /// The weights of a PEFT adapter.
  [[nodiscard]] SafetensorsFile adapter(const std::filesystem::path& folder) const;
  /// Fingerprint of a model and its adapter, independent of their location.
  [[nodiscard]] std::string fingerprint(const spec::ModelFiles& files) const;
  /// Fails if an adapter names the base that it was trained on, and `files.base` has other
  /// contents. Adapters of other programs name none.
  void check_base(const spec::ModelFiles& files) const;
  /// Closes files without other users. A later call opens them again.
  void close() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Metadata key of an adapter's weights: the fingerprint of the base that it was trained on.
inline constexpr const char* kBaseKey = "neap_base";
/// NEAP_OTHER_BASE=allow makes check_base() warn instead of fail.
inline constexpr const char* kOtherBaseVariable = "NEAP_OTHER_BASE";

}  // namespace neap::weights
